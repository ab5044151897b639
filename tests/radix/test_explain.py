"""Every token of a prompt has one reason."""

import random

import numpy as np
import pytest

from tests.radix.factories import array, cached, count_up, evict, make_cache, serve
from trunkline.radix import DEFAULT_NAMESPACE, Explanation, Reason, page_hashes


def told(explanation: Explanation) -> list[tuple[int, int, str]]:
    return [(part.start, part.end, part.reason.value) for part in explanation.parts]


def test_a_prompt_that_is_all_cached_has_its_last_token_to_compute() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 40))
    assert told(cache.explain(count_up(0, 40))) == [(0, 39, "cached"), (39, 40, "last_token")]


def test_an_unknown_prompt_was_never_seen() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 40))
    assert told(cache.explain(count_up(500, 540))) == [(0, 39, "never_seen"), (39, 40, "last_token")]


def test_a_prompt_that_goes_on_behind_the_cached_one_was_never_seen_there() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 40))
    assert told(cache.explain(count_up(0, 60))) == [
        (0, 40, "cached"),
        (40, 59, "never_seen"),
        (59, 60, "last_token"),
    ]


def test_a_divergence_names_its_token_and_how_many_ways_the_tree_goes_on() -> None:
    cache = make_cache(page_size=4)
    for tail in (5, 6, 7):
        serve(cache, array(1, 2, 3, 4, 1, tail, tail, tail))
    serve(cache, array(1, 2, 3, 4, 2, 9, 9, 9))
    explanation = cache.explain(array(1, 2, 3, 4, 1, 9, 9, 9, 9, 9))
    assert told(explanation) == [(0, 5, "cached"), (5, 9, "diverged"), (9, 10, "last_token")]
    assert explanation.parts[1].detail == {"token": 5, "siblings": 3}
    at_the_page = cache.explain(array(1, 2, 3, 4, 9, 9, 9, 9, 9, 9))
    assert at_the_page.parts[1].detail == {"token": 4, "siblings": 4}


def test_behind_the_end_of_a_partial_leaf_nothing_was_seen_though_it_has_siblings() -> None:
    cache = make_cache(page_size=4)
    serve(cache, array(1, 2, 3, 4, 5, 6))
    serve(cache, array(1, 2, 3, 4, 7, 7, 7, 7))
    assert told(cache.explain(array(1, 2, 3, 4, 5, 6, 9, 9, 9))) == [
        (0, 6, "cached"),
        (6, 8, "never_seen"),
        (8, 9, "last_token"),
    ]


def test_a_divergence_inside_a_node_has_one_sibling() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 20))
    explanation = cache.explain(np.append(count_up(0, 10), count_up(90, 100)).astype(np.int32))
    assert told(explanation) == [(0, 10, "cached"), (10, 19, "diverged"), (19, 20, "last_token")]
    assert explanation.parts[1].detail == {"token": 10, "siblings": 1}


def test_evicted_pages_say_how_long_ago_and_by_which_policy() -> None:
    cache = make_cache(page_size=4, num_pages=16, explain=True, eviction_policy="lfu")
    serve(cache, count_up(0, 20))
    evict(cache, 2)
    when = cache.tick - 1  # `evict` gave its own pages back in one more tick
    serve(cache, count_up(100, 104))
    explanation = cache.explain(count_up(0, 24))
    assert told(explanation) == [
        (0, 12, "cached"),
        (12, 20, "evicted"),
        (20, 23, "never_seen"),
        (23, 24, "last_token"),
    ]
    assert explanation.parts[1].detail == {"ticks_ago": cache.tick - when, "policy": "lfu"}


def test_flushed_pages_are_told_from_evicted_ones() -> None:
    cache = make_cache(page_size=4, explain=True)
    serve(cache, count_up(0, 8))
    cache.flush()
    assert cache.explain(count_up(0, 8)).parts[0].detail == {"ticks_ago": 0, "policy": "flush"}


def test_a_page_that_came_back_is_no_ghost() -> None:
    cache = make_cache(page_size=4, explain=True)
    for _ in range(2):
        serve(cache, count_up(0, 8))
        cache.flush()
    serve(cache, count_up(0, 8))
    assert told(cache.explain(count_up(0, 8))) == [(0, 7, "cached"), (7, 8, "last_token")]


def test_ghosts_are_bounded_and_the_oldest_are_forgotten() -> None:
    cache = make_cache(page_size=4, num_pages=64, explain=True, ghost_capacity=3)
    for start in (0, 100, 200, 300):
        serve(cache, count_up(start, start + 4))
    evict(cache, 4)
    reasons = [cache.explain(count_up(start, start + 5)).parts[0].reason for start in (0, 100, 200, 300)]
    assert reasons == ["never_seen", "evicted", "evicted", "evicted"]


def test_of_a_page_that_went_twice_the_last_time_is_told() -> None:
    cache = make_cache(page_size=4, num_pages=64, explain=True, ghost_capacity=2)
    for start in (0, 100, 0, 200):
        serve(cache, count_up(start, start + 4))
        cache.explain(count_up(900, 910))
        cache.flush()
    details = [cache.explain(count_up(start, start + 5)).parts[0] for start in (0, 100, 200)]
    assert [part.reason for part in details] == ["evicted", "never_seen", "evicted"]
    assert details[0].detail["ticks_ago"] > details[2].detail["ticks_ago"] == 0


def test_without_explain_evicted_pages_were_never_seen() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 8))
    evict(cache, 2)
    assert told(cache.explain(count_up(0, 8))) == [(0, 7, "never_seen"), (7, 8, "last_token")]


def test_pages_of_another_namespace_are_named_with_it() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 10), ("salt", "x"))
    serve(cache, count_up(0, 3), ("tenant", "y"))
    explanation = cache.explain(count_up(0, 14))
    assert told(explanation) == [
        (0, 10, "other_namespace"),
        (10, 13, "never_seen"),
        (13, 14, "last_token"),
    ]
    assert explanation.parts[0].detail == {"kind": "salt", "value": "x"}


def test_pages_being_computed_by_another_request_are_in_flight() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 4))
    prompt = count_up(0, 14)
    running = set(page_hashes(prompt, 4)[1:3].tolist())
    assert told(cache.explain(prompt, in_flight=running)) == [
        (0, 4, "cached"),
        (4, 12, "in_flight"),
        (12, 13, "never_seen"),
        (13, 14, "last_token"),
    ]


def test_what_was_computed_before_a_preemption_and_is_lost_is_preempted() -> None:
    cache = make_cache(page_size=4, explain=True)
    serve(cache, count_up(0, 20))
    evict(cache, 3)
    assert told(cache.explain(count_up(0, 24), preempted_tokens=18)) == [
        (0, 8, "cached"),
        (8, 18, "preempted"),
        (18, 20, "evicted"),
        (20, 23, "never_seen"),
        (23, 24, "last_token"),
    ]


def test_an_empty_prompt_has_no_parts() -> None:
    assert make_cache().explain(array()).parts == ()


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_parts_always_add_up_to_the_prompt(page_size: int) -> None:
    rng = random.Random(page_size)
    cache = make_cache(page_size=page_size, num_pages=120 // page_size + 6, explain=True, ghost_capacity=20)
    names = [DEFAULT_NAMESPACE, ("salt", "x")]
    for _ in range(400):
        prompt = array(*rng.choices((1, 2), (5, 1), k=rng.randint(1, 60)))
        name = rng.choice(names)
        in_flight = set(page_hashes(prompt, page_size, name)[:: rng.randint(1, 3)].tolist())
        explanation = cache.explain(prompt, name, in_flight=in_flight, preempted_tokens=rng.randint(0, 70))
        ends = [0] + [part.end for part in explanation.parts]
        assert [part.start for part in explanation.parts] == ends[:-1]
        assert all(part.start < part.end for part in explanation.parts)
        totals = explanation.tokens_by_reason()
        assert sum(totals.values()) == explanation.num_tokens == len(prompt)
        assert totals.get(Reason.CACHED, 0) == min(cached(cache, prompt, name), len(prompt) - 1)
        assert totals[Reason.LAST_TOKEN] == 1
        serve(cache, prompt, name)
