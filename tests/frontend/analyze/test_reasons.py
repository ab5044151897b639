"""Reasons: they add up for every prompt, and each is given where it holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.analyze.traces import block_trace, random_paths, text_trace
from trunkline.frontend.analyze.chains import build_chains
from trunkline.frontend.analyze.parts import explained, prompt_parts
from trunkline.frontend.analyze.reasons import Reason, Reasons, find_reasons
from trunkline.frontend.analyze.touches import touch
from trunkline.frontend.analyze.trace import Trace

WORDS = ("one", "two", "three", "four")


def reasons_of(trace: Trace, capacity: int = 10**6, policy: str = "lru", twins_share: bool = True) -> Reasons:
    return find_reasons(trace, touch(trace), build_chains(trace), policy, capacity, twins_share)


def counts(reasons: Reasons, request: int) -> dict[str, int]:
    return {
        reason.value: int(tokens[request]) for reason, tokens in reasons.tokens.items() if tokens[request]
    }


def require_exact(trace: Trace, reasons: Reasons) -> None:
    assert all((tokens >= 0).all() for tokens in reasons.tokens.values())
    assert (sum(reasons.tokens.values()) == trace.num_tokens).all()
    for request in range(len(trace)):
        parts = prompt_parts(trace, reasons, request)
        bounds = [0, *(part.end for part in parts)]
        assert [part.start for part in parts] == bounds[:-1]
        assert bounds[-1] == trace.num_tokens[request]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(1, 120),
    policy=st.sampled_from(["lru", "lfu", "slru", "gdsf"]),
    twins_share=st.booleans(),
    spaces=st.integers(1, 3),
)
def test_reasons_of_block_traces_add_up(
    seed: int, capacity: int, policy: str, twins_share: bool, spaces: int
) -> None:
    paths = [path or [0] for path in random_paths(seed, num_requests=40)]
    rng = np.random.default_rng(seed)
    tails = rng.integers(-3, 4, len(paths))
    trace = block_trace(
        paths,
        block_size=4,
        namespaces=[str(rng.integers(spaces)) for _ in paths],
        num_tokens=[4 * len(path) + int(tail) for path, tail in zip(paths, tails, strict=True)],
        first_token_time=[number + float(rng.uniform(0, 3)) for number in range(len(paths))],
        preempted_tokens=[int(rng.integers(0, 9)) * int(rng.random() < 0.2) for _ in paths],
    )
    require_exact(trace, reasons_of(trace, capacity, policy, twins_share))


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=24).map(" ".join), min_size=1, max_size=12
    ),
    page_size=st.sampled_from([1, 4, 16]),
    capacity=st.integers(1, 30),
)
def test_reasons_of_texts_add_up(prompts: list[str], page_size: int, capacity: int) -> None:
    trace = text_trace(prompts, page_size, namespaces=[str(len(prompt) % 2) for prompt in prompts])
    require_exact(trace, reasons_of(trace, capacity))


def test_what_nobody_had_before_was_never_seen() -> None:
    assert counts(reasons_of(block_trace([[1, 2]])), 0) == {"never_seen": 8}


def test_a_whole_prompt_that_is_cached_still_computes_its_last_token() -> None:
    assert counts(reasons_of(block_trace([[1, 2], [1, 2]])), 1) == {"cached": 7, "last_token": 1}


def test_a_continuation_is_new_and_a_branch_has_diverged() -> None:
    reasons = reasons_of(block_trace([[1, 2], [1, 2, 3], [1, 4], [1, 5]]))
    assert counts(reasons, 1) == {"cached": 8, "never_seen": 4}
    assert counts(reasons, 2) == {"cached": 4, "diverged": 4}
    assert counts(reasons, 3) == {"cached": 4, "diverged": 4}
    assert reasons.siblings.tolist() == [0, 0, 1, 2]
    assert reasons.diverged_at.tolist() == [0, 8, 4, 4]


def test_an_evicted_block_names_who_pushed_it_out_how_long_ago_and_what_would_have_kept_it() -> None:
    trace = block_trace([[1, 2], [3, 4], [1, 2]])
    reasons = reasons_of(trace, capacity=3)
    assert counts(reasons, 2) == {"cached": 4, "evicted": 4}
    assert reasons.evicted_by.tolist() == [-1, -1, 1]
    assert reasons.needed.tolist() == [0, 0, 4]
    evicted = prompt_parts(trace, reasons, 2)[1]
    assert evicted.reason is Reason.EVICTED
    assert "to make room for request 1" in evicted.detail
    assert "1.0 s and 1 requests ago" in evicted.detail
    assert "last used 2.0 s ago" in evicted.detail
    assert "an LRU cache of 16 tokens would have kept it" in evicted.detail


def test_a_prompt_larger_than_the_cache_says_so() -> None:
    trace = block_trace([[1, 2, 3], [1, 2, 3]])
    reasons = reasons_of(trace, capacity=2)
    assert counts(reasons, 1) == {"cached": 8, "evicted": 4}
    assert "larger than the cache" in prompt_parts(trace, reasons, 1)[1].detail


def test_what_another_namespace_has_is_named() -> None:
    reasons = reasons_of(block_trace([[1, 2], [1, 2]], namespaces=["a", "b"]))
    assert counts(reasons, 1) == {"other_namespace": 8}


def test_a_twin_in_prefill_is_shared_or_missed_as_the_server_does() -> None:
    trace = block_trace([[1, 2], [1, 2, 3]], first_token_time=[5.0, 6.0])
    assert counts(reasons_of(trace), 1) == {"cached": 8, "never_seen": 4}
    assert counts(reasons_of(trace, twins_share=False), 1) == {"twin_in_prefill": 8, "never_seen": 4}
    later = block_trace([[1, 2], [1, 2, 3]], first_token_time=[0.5, 6.0])
    assert counts(reasons_of(later, twins_share=False), 1) == {"cached": 8, "never_seen": 4}


def test_preempted_tokens_are_told_apart_from_evicted_ones() -> None:
    trace = block_trace([[1, 2], [3, 4], [1, 2]], preempted_tokens=[0, 0, 6])
    assert counts(reasons_of(trace, capacity=3), 2) == {"cached": 4, "preempted": 2, "evicted": 2}


def test_text_that_is_shared_inside_a_page_is_shorter_than_a_page() -> None:
    trace = text_trace(["a b c d e", "a b c x y"], page_size=4)
    reasons = reasons_of(trace)
    assert counts(reasons, 1) == {"cached": 4, "shorter_than_page": 2, "diverged": 3}
    assert explained(trace, reasons, 1)["texts"] == {"shared": "a b c ", "this": "x y", "other": "d e"}


def test_tokens_behind_the_last_page_of_a_hash_log_are_too_short_to_compare() -> None:
    reasons = reasons_of(block_trace([[1], [1]], num_tokens=[6, 6]))
    assert counts(reasons, 1) == {"cached": 4, "shorter_than_page": 2}


@pytest.mark.parametrize("capacity", [2, 5, 9])
def test_hits_at_the_analysed_size_are_those_of_the_curve(capacity: int) -> None:
    trace = block_trace(random_paths(5))
    hits = touch(trace).looked_up(trace).hit_blocks(trace, capacity)
    assert reasons_of(trace, capacity).hit_blocks.tolist() == hits.tolist()
