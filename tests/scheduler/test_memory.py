"""Little memory: preemption, swap, growth, and who may pass whom."""

import numpy as np
import pytest

from tests.scheduler.fakes import answer_of, make_house, make_request, make_tokens
from trunkline.scheduler.forecast import Demand, GrowthForecast, OutputLengths
from trunkline.scheduler.plan import StepResult


def optimistic(house, count: int = 8) -> None:
    """Let the scheduler learn that answers have one token, so that it admits too many."""
    for i in range(count):
        house.add(make_request(f"short{i}", 5, 1))
    house.run()


def overcommitted(**settings):
    """Eight requests of which each wants a quarter of the pool, admitted together by an optimist."""
    house = make_house(num_pages=32, page_size=4, max_num_batched_tokens=64, **settings)
    optimistic(house)
    requests = [make_request(f"r{i}", 12, 20) for i in range(8)]
    house.add(*requests)
    house.run()
    return house, requests


@pytest.mark.parametrize(
    ("mode", "host_pages"), [("recompute", 0), ("swap", 64), ("swap", 3), ("auto", 64), ("heuristic", 64)]
)
def test_preempted_requests_answer_as_if_they_had_never_stopped(mode, host_pages):
    house, requests = overcommitted(preemption_mode=mode, num_host_pages=host_pages)
    assert house.scheduler.stats().num_preemptions >= 3
    for request in requests:
        assert house.answers[request.id] == answer_of(request.prompt, 20)
        assert house.ends[request.id].finish_reason == "length"
    assert sum(house.ends[request.id].num_preemptions for request in requests) >= 3
    assert house.is_idle_and_clean()


def test_the_oldest_running_request_gets_a_token_in_every_step():
    house, _ = overcommitted()
    first = next(i for i, plan in enumerate(house.plans) if any(s.id == "r0" for s in plan.scheduled))
    for plan in house.plans[first : first + 20]:
        assert plan.scheduled[0].id == "r0"


def test_nobody_is_preempted_and_admitted_in_the_same_step():
    house, _ = overcommitted()
    assert any(plan.preempted for plan in house.plans)
    for plan in house.plans:
        assert not {s.id for s in plan.scheduled} & set(plan.preempted)


def test_the_victim_is_the_least_important_then_the_latest():
    house = make_house(num_pages=16, page_size=4, scheduling_policy="fcfs")
    optimistic(house)
    house.add(
        make_request("important", 16, 30, priority=1),
        make_request("early", 16, 30),
        make_request("late", 16, 30),
    )
    house.run()
    preempted = [name for plan in house.plans for name in plan.preempted]
    assert preempted[:2] == ["late", "early"]
    assert house.ends["important"].num_preemptions == 0


def test_tokens_that_a_preemption_lost_are_counted_apart_from_prefix_hits():
    house, _ = overcommitted()
    stats = house.scheduler.stats()
    assert stats.num_cached_tokens == 0
    # Every known token but the last is computed once, and again where a preemption lost it.
    assert house.runner.num_computed == 8 * 5 + 8 * (12 + 20 - 1) + stats.num_recomputed_tokens


def test_a_quick_resume_rereads_what_is_still_cached():
    house = make_house(num_pages=10, page_size=4)
    optimistic(house)
    house.add(make_request("a", 16, 8), make_request("b", 16, 8))
    while not house.scheduler.stats().num_preemptions:
        house.step()
    house.scheduler.abort("a", house.now)
    house.run()
    stats = house.scheduler.stats()
    assert stats.num_reread_tokens >= 12
    assert stats.num_recomputed_tokens <= 8
    assert stats.num_cached_tokens == 0
    assert house.answers["b"] == answer_of(make_request("b", 16).prompt, 8)


def test_a_victim_commits_even_the_tail_so_that_nothing_is_computed_twice():
    house = make_house(max_num_seqs=1, scheduling_policy="priority")
    house.add(make_request("victim", 21, 9))
    for _ in range(4):
        house.step()
    house.add(make_request("urgent", 20, 2, priority=1))
    house.run()
    assert house.ends["victim"].num_preemptions == 1
    assert house.scheduler.stats().num_recomputed_tokens == 0
    assert house.scheduler.stats().num_reread_tokens == 21 + 3


def test_pages_that_a_match_will_hold_are_not_counted_as_room():
    house = make_house(num_pages=10, page_size=4)
    prompt = make_tokens(20)
    house.add(make_request("cached", prompt, 1))
    house.run()
    house.add(make_request("holder", 16, 8))
    house.step()
    house.add(make_request("reader", np.append(prompt, np.int32(1)), 8))
    house.run()
    # Beside the holder there is room for the five cached pages and one more, and both of them grow.
    assert house.scheduler.stats().num_preemptions == 0
    assert list(house.ends) == ["cached", "holder", "reader"]


def test_a_prompt_that_fills_the_pool_is_answered_again_though_there_is_no_room_to_copy_a_page():
    house = make_house(num_pages=2, page_size=4)
    prompt = make_tokens(8)
    for name in ("first", "again"):
        house.add(make_request(name, prompt, 1))
        house.run()
    assert house.answers["first"] == house.answers["again"] == answer_of(prompt, 1)
    assert house.ends["again"].num_cached_tokens == 4


def test_two_requests_that_need_one_page_more_than_there_is_finish_one_after_the_other():
    house = make_house(num_pages=5, page_size=4)
    optimistic(house)
    house.add(make_request("a", 8, 5), make_request("b", 8, 5))
    house.run(max_steps=40)
    assert house.answers["a"] == answer_of(make_request("a", 8).prompt, 5)
    assert house.answers["b"] == answer_of(make_request("b", 8).prompt, 5)
    assert house.scheduler.stats().num_preemptions <= 2


def test_swapped_pages_come_back_from_the_host_where_the_tree_has_lost_them():
    house = make_house(num_pages=16, page_size=4, preemption_mode="swap", num_host_pages=32)
    optimistic(house)
    house.add(*(make_request(f"r{i}", 12, 24) for i in range(4)))
    house.run()
    stats = house.scheduler.stats()
    assert stats.num_swapped_out > 0
    assert stats.num_swapped_in_tokens > 0
    assert any(len(plan.swap_in) for plan in house.plans)
    assert house.is_idle_and_clean()


def test_a_swapped_request_whose_shared_prefix_is_gone_is_computed_again():
    house = make_house(num_pages=16, page_size=4, preemption_mode="swap", num_host_pages=32)
    optimistic(house)
    prefix = make_tokens(16)
    house.add(make_request("seed", prefix, 1))
    house.run()
    victim = make_request("victim", np.concatenate([prefix, make_tokens(8, 1)]), 20)
    house.add(make_request("holder", 20, 44), victim)
    house.run()
    stats = house.scheduler.stats()
    assert house.ends["victim"].num_cached_tokens == 16
    assert stats.num_swapped_out == 1
    assert stats.num_swapped_in_tokens == 0
    assert house.answers["victim"] == answer_of(victim.prompt, 20)
    assert house.is_idle_and_clean()


def test_a_swapped_request_that_is_aborted_gives_its_host_pages_back():
    house = make_house(num_pages=16, page_size=4, preemption_mode="swap", num_host_pages=32)
    optimistic(house)
    house.add(*(make_request(f"r{i}", 12, 24) for i in range(4)))
    while not house.scheduler.stats().now_host_pages:
        house.step()
    (victim,) = house.plans[-1].preempted
    house.scheduler.abort(victim, house.now)
    assert house.scheduler.stats().now_host_pages == 0
    house.scheduler.check()


def test_heuristic_swaps_only_long_answers():
    house = make_house(num_pages=22, page_size=4, preemption_mode="heuristic", num_host_pages=32)
    optimistic(house)
    house.add(make_request("a", 40, 12), make_request("b", 40, 12))
    house.run()
    # Preempted after less than a fifth of its prompt's length: computed again.
    assert house.scheduler.stats().num_preemptions >= 1
    assert house.scheduler.stats().num_swapped_out == 0


@pytest.mark.parametrize(("copy_seconds", "swaps"), [(1e-6, True), (10.0, False)])
def test_auto_swaps_when_copying_was_measured_to_be_faster_than_computing(copy_seconds, swaps):
    house = make_house(num_pages=16, page_size=4, preemption_mode="auto", num_host_pages=64)
    optimistic(house)
    house.add(*(make_request(f"r{i}", 12, 24) for i in range(4)))
    counts = []
    while house.scheduler.has_work:
        plan = house.scheduler.schedule(house.now)
        counts.extend([len(plan.swap_out) > 0] * len(plan.preempted))
        result = house.runner.run(plan)
        if len(plan.swap_out) or len(plan.swap_in):
            result.copy_elapsed = copy_seconds
        house.scheduler.update(plan, result, house.now + 0.01)
        house.now += 0.01
    # The first one is swapped to have a measurement.
    assert counts[0]
    assert len(counts) > 2
    assert all(counts[1:]) is swaps
    assert any(counts[1:]) is swaps


def test_a_request_that_does_not_fit_lets_smaller_ones_pass_but_only_so_often():
    house = make_house(num_pages=20, page_size=4, scheduling_policy="fcfs", max_overtakes=3)
    house.add(make_request("holder", 20, 20))
    house.step()
    house.add(make_request("big", 60, 1), *(make_request(f"s{i}", 4, 1) for i in range(10)))
    house.run()
    order = list(house.ends)
    assert order[:4] == ["s0", "s1", "s2", "holder"]
    assert order[4] == "big"
    assert len(order) == 12


def test_no_more_candidates_are_passed_over_than_the_setting_says():
    house = make_house(num_pages=20, page_size=4, scheduling_policy="fcfs", max_skipped_candidates=2)
    house.add(make_request("holder", 20, 20))
    house.step()
    house.add(*(make_request(f"big{i}", 60, 1) for i in range(3)), make_request("small", 4, 1))
    house.step()
    assert [s.id for s in house.plans[-1].scheduled] == ["holder"]
    house.scheduler.abort("big0", house.now)
    house.step()
    assert [s.id for s in house.plans[-1].scheduled] == ["holder", "small"]


def test_pinned_pages_that_leave_no_room_end_a_request_with_an_error():
    house = make_house(num_pages=8, page_size=4)
    prompt = make_tokens(16)
    house.add(make_request("a", prompt, 1))
    house.run()
    house.cache.pin(prompt)
    house.check = False
    house.add(make_request("b", 20, 8))
    house.run()
    assert house.ends["b"].finish_reason == "error"
    assert "pinned" in house.ends["b"].error


def test_expected_lengths_follow_the_finished_ones():
    lengths = OutputLengths()
    one = np.array([0])
    assert lengths.expected_remaining(one, np.array([100])).tolist() == [50]
    for value in range(1, 101):
        lengths.record(value)
    assert 70 <= lengths.expected_remaining(one, np.array([1000]))[0] <= 80
    assert lengths.expected_remaining(np.array([150]), np.array([1000])).tolist() == [150]
    assert lengths.expected_remaining(np.array([150]), np.array([160])).tolist() == [10]


def brute_force_peak(pending, growth, own):
    """Walk time token by token: what all together hold beyond now, at the worst moment."""
    worst = 0.0
    for step in range(int(max(growth, default=0)) + 1):
        total = sum(pending)
        for grows, gives in zip(growth, own, strict=True):
            total += step if step <= grows else -gives
        worst = max(worst, total)
    return worst


@pytest.mark.parametrize("seed", range(20))
def test_the_forecast_finds_the_peak_that_walking_through_time_finds(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    growth = rng.integers(0, 12, count).astype(float).tolist()
    own = rng.integers(0, 9, count).tolist()
    pending = rng.integers(0, 5, count).tolist()
    peak = int(brute_force_peak(pending, growth, own))
    forecast = GrowthForecast(sum(pending[1:]), growth[1:], own[1:])
    candidate = Demand(pending[0], growth[0], own[0])
    assert forecast.fits(peak, candidate)
    assert not forecast.fits(peak - 1, candidate)


def test_a_pool_of_a_tenth_of_the_demand_answers_as_a_large_one():
    rng = np.random.default_rng(5)
    prompts = [make_tokens(int(rng.integers(8, 40)), i) for i in range(40)]
    total = sum(len(prompt) + 16 for prompt in prompts) // 4
    answers = {}
    for num_pages in (total // 10, 4 * total):
        house = make_house(num_pages=num_pages, page_size=4, max_num_batched_tokens=64)
        house.add(*(make_request(f"r{i}", prompt, 16) for i, prompt in enumerate(prompts)))
        house.run(max_steps=3000)
        answers[num_pages] = house.answers
        assert house.is_idle_and_clean()
    small, large = answers.values()
    assert small == large


def test_an_empty_result_for_a_step_without_tokens_is_enough():
    house = make_house()
    plan = house.scheduler.schedule(0.0)
    assert plan.num_tokens == 0
    assert house.scheduler.update(plan, StepResult(), 0.0) == []
