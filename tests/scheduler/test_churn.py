"""Random lives under a pool that is far too small: nothing leaks, nobody is lost, every answer is right."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scheduler.fakes import VOCAB, House, answer_of, make_house, make_request, make_tokens

POLICIES = ["fcfs", "lpm", "dfs-weight", "lof", "priority", "random"]


def random_request(rng: np.random.Generator, name: str):
    """Prompts that share prefixes of any length with each other, often equal, some of whole pages."""
    trunk = make_tokens(40, int(rng.integers(0, 3)))
    keep = int(rng.integers(0, len(trunk) + 1))
    tail = rng.integers(0, VOCAB, int(rng.choice([0, 0, 1, 3, 4, 9, 20]))).astype(np.int32)
    prompt = np.concatenate([trunk[:keep], tail])
    if not len(prompt):
        prompt = trunk
    most = int(rng.integers(1, 16))
    stops = frozenset(rng.integers(0, VOCAB, 60).tolist()) if rng.random() < 0.3 else frozenset()
    return make_request(
        name,
        prompt,
        most,
        min_new_tokens=int(rng.integers(0, most + 1)) if rng.random() < 0.2 else 0,
        stop_token_ids=stops,
        priority=int(rng.integers(0, 3)) if rng.random() < 0.3 else 0,
        namespace=("tenant", str(rng.integers(0, 2))) if rng.random() < 0.2 else ("default", ""),
        is_sequential=rng.random() < 0.05,
        logits_from=int(rng.integers(0, len(prompt))) if rng.random() < 0.15 else None,
    )


def expected_answer(request) -> list[int]:
    tokens = answer_of(request.prompt, request.max_new_tokens)
    for index, token in enumerate(tokens):
        if token in request.stop_token_ids and index + 1 >= request.min_new_tokens:
            return tokens[: index + 1]
    return tokens


def churn(house: House, rng: np.random.Generator, rounds: int) -> None:
    """Adds, aborts at every moment (between plan and result too), stops, failures, and the check after each."""
    requests, cut = {}, set()

    def maybe_abort() -> None:
        if requests and rng.random() < 0.15:
            name = f"r{rng.integers(0, len(requests))}"
            output = house.scheduler.abort(name, house.now)
            assert (output is None) == (name in house.ends)
            assert house.scheduler.abort(name, house.now) is None
            if output is not None:
                cut.add(name)
                house.note([output])
            house.scheduler.check()

    for _ in range(rounds):
        for _ in range(int(rng.integers(0, 4))):
            request = random_request(rng, f"r{len(requests)}")
            requests[request.id] = request
            house.add(request)
        maybe_abort()
        if not house.in_flight:
            house.launch()
        maybe_abort()
        if house.overlap and house.scheduler.may_schedule and rng.random() < 0.9:
            house.launch()
            maybe_abort()
        plan = house.in_flight[0]
        assert not {s.id for s in plan.scheduled} & set(plan.preempted)
        failed = {}
        if plan.scheduled and rng.random() < 0.05:
            failed = {plan.scheduled[0].id: "logits are not finite"}
            cut.add(plan.scheduled[0].id)
        for output in house.land(failed):
            if output.finish_reason is None and rng.random() < 0.03:
                stopped = house.scheduler.finish(output.id, "stop", house.now)
                assert stopped is not None
                cut.add(output.id)
                house.note([stopped])
                house.scheduler.check()
    house.run()
    assert house.is_idle_and_clean()
    assert set(house.ends) == set(requests)
    for name, request in requests.items():
        answer = expected_answer(request)
        if name in cut:
            assert house.answers[name] == answer[: len(house.answers[name])]
        else:
            assert house.answers[name] == answer


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("policy", "mode", "host_pages"),
    [
        ("fcfs", "recompute", 0),
        ("lpm", "recompute", 0),
        ("dfs-weight", "recompute", 0),
        ("lof", "swap", 40),
        ("priority", "swap", 40),
        ("random", "auto", 40),
        ("lpm", "swap", 7),
        ("lpm", "heuristic", 20),
        ("dfs-weight", "auto", 20),
    ],
)
def test_churn_in_a_tiny_pool_leaks_nothing_and_answers_right(policy, mode, host_pages, overlap):
    house = make_house(
        num_pages=20,
        page_size=4,
        overlap=overlap,
        scheduling_policy=policy,
        preemption_mode=mode,
        num_host_pages=host_pages,
        max_num_batched_tokens=24,
        max_num_seqs=6,
        max_wait_steps=10,
    )
    churn(house, np.random.default_rng([len(policy), len(mode), host_pages]), 60)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    overlap=st.booleans(),
    num_pages=st.integers(19, 40),
    budget=st.sampled_from([1, 3, 7, 64]),
    num_seqs=st.integers(1, 8),
    partial=st.integers(1, 4),
    switches=st.fixed_dictionaries(
        {
            "scheduling_policy": st.sampled_from(POLICIES),
            "batching": st.sampled_from(["continuous", "static"]),
            "enable_chunked_prefill": st.booleans(),
            "enable_prefix_caching": st.booleans(),
            "max_overtakes": st.integers(0, 3),
            "max_skipped_candidates": st.integers(0, 3),
            "in_flight_patience": st.integers(1, 3),
            "fair_share_quantum": st.none() | st.integers(1, 200),
            "priority_preemption": st.none() | st.booleans(),
        }
    ),
)
def test_churn_holds_under_every_combination_of_settings(
    seed, overlap, num_pages, budget, num_seqs, partial, switches
):
    house = make_house(
        num_pages=num_pages,
        page_size=4,
        overlap=overlap,
        max_num_batched_tokens=budget,
        max_num_seqs=num_seqs,
        max_num_partial_prefills=partial,
        **switches,
    )
    churn(house, np.random.default_rng(seed), 20)
