"""The simulator: the real scheduler and cache on a virtual clock, priced so that a hand can count."""

import numpy as np
import pytest

from trunkline.radix import PagePool, PrefixCache, RadixConfig
from trunkline.scheduler.config import SchedulerConfig
from trunkline.scheduler.plan import SchedulePlan, empty_pairs
from trunkline.scheduler.roofline import StepLoad
from trunkline.scheduler.scheduler import Scheduler
from trunkline.scheduler.simulation_report import Distribution, LevelMeter, SimulationReport
from trunkline.scheduler.simulator import Simulation, SimulationStalledError
from trunkline.scheduler.workload import GeneratorConfig, SimulatedRequest, Workload, from_lengths, generate


class OneSecondSteps:
    """Every step takes a second."""

    def step_seconds(self, load: StepLoad) -> float:
        return 1.0


class TenthPerToken:
    """A second a step and a tenth of a second for each token in it."""

    def step_seconds(self, load: StepLoad) -> float:
        return 1.0 + load.tokens / 10


def make_request(
    name: str,
    prompt: range,
    num_new: int,
    arrival: float = 0.0,
    after: str | None = None,
) -> SimulatedRequest:
    return SimulatedRequest(
        name,
        arrival,
        np.array([prompt.start], np.int64),
        np.array([len(prompt)], np.int64),
        num_new,
        output_start=1_000_000 + 1000 * prompt.stop,
        after=after,
    )


def run(
    *requests: SimulatedRequest,
    cost: OneSecondSteps | TenthPerToken | None = None,
    num_pages: int = 100,
    **config: object,
) -> SimulationReport:
    workload = Workload("test", requests, 1)
    return run_workload(workload, num_pages, cost=cost, **config)


def run_workload(
    workload: Workload,
    num_pages: int,
    cost: OneSecondSteps | TenthPerToken | None = None,
    page_size: int = 4,
    kind: type[Simulation] = Simulation,
    **config: object,
) -> SimulationReport:
    pool = PagePool(num_pages, page_size)
    scheduler = Scheduler(
        PrefixCache(pool, RadixConfig(page_size)),
        SchedulerConfig.from_mapping({"scheduling_policy": "fcfs"} | config),
    )
    return kind(workload, scheduler, pool, cost or OneSecondSteps()).run()


def test_one_request_takes_a_step_for_its_prompt_and_one_for_each_further_token() -> None:
    report = run(make_request("a", range(10, 15), num_new=3, arrival=2.0))
    assert report.num_finished == 1
    assert report.num_steps == 3
    assert report.seconds == 5.0
    assert report.ttft == Distribution(mean=1.0, p50=1.0, p99=1.0, max=1.0)
    assert report.itl == Distribution(mean=1.0, p50=1.0, p99=1.0, max=1.0)
    assert report.end_to_end == Distribution(mean=3.0, p50=3.0, p99=3.0, max=3.0)
    assert report.prompt_tokens == 5
    assert report.computed_tokens == 5 + 2
    assert report.output_tokens == 3
    assert report.output_tokens_per_second == 3 / 5
    assert report.total_tokens_per_second == 8 / 5
    assert report.running.mean == 3 / 5
    assert report.queued.peak == 0


def test_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    report = run(make_request("a", range(10, 20), num_new=1), max_num_batched_tokens=4)
    assert report.num_steps == 3
    assert report.ttft is not None
    assert report.ttft.p50 == 3.0


def test_price_of_a_step_moves_the_clock() -> None:
    report = run(make_request("a", range(10, 15), num_new=2), cost=TenthPerToken())
    assert report.ttft is not None
    assert report.itl is not None
    assert report.ttft.p50 == pytest.approx(1.5)
    assert report.itl.p50 == pytest.approx(1.1)


def test_equal_prompt_later_is_a_hit_but_for_its_last_token() -> None:
    report = run(
        make_request("a", range(10, 19), num_new=1), make_request("b", range(10, 19), 1, arrival=5.0)
    )
    assert report.cached_prompt_tokens == 8
    assert report.hit_rate == 8 / 18
    assert report.computed_tokens == 9 + 1


def test_without_prefix_caching_nothing_is_a_hit() -> None:
    report = run(
        make_request("a", range(10, 19), num_new=1),
        make_request("b", range(10, 19), 1, arrival=5.0),
        enable_prefix_caching=False,
    )
    assert report.hit_rate == 0.0
    assert report.computed_tokens == 18


def test_follower_arrives_its_think_time_after_the_last_token() -> None:
    report = run(
        make_request("a", range(10, 15), num_new=2),
        make_request("b", range(30, 35), num_new=1, arrival=10.0, after="a"),
    )
    # a ends at 2, b arrives at 12 and ends at 13.
    assert report.seconds == 13.0
    assert report.num_steps == 3
    assert report.end_to_end == Distribution(mean=1.5, p50=1.0, p99=2.0, max=2.0)


def test_second_request_waits_while_the_only_slot_is_taken() -> None:
    report = run(
        make_request("a", range(10, 15), num_new=3),
        make_request("b", range(30, 35), num_new=1),
        max_num_seqs=1,
    )
    assert report.seconds == 4.0
    assert report.queued.mean == 3 / 4
    assert report.queued.peak == 1
    assert report.running.peak == 1
    assert report.ttft == Distribution(mean=2.5, p50=1.0, p99=4.0, max=4.0)


def test_request_larger_than_the_cache_is_counted_as_refused_and_its_follower_still_comes() -> None:
    report = run(
        make_request("big", range(10, 100), num_new=1),
        make_request("b", range(200, 205), num_new=1, arrival=1.0, after="big"),
        num_pages=5,
    )
    assert (report.num_requests, report.num_refused, report.num_finished) == (2, 1, 1)
    assert report.seconds == 2.0


def test_memory_is_the_share_of_pages_that_running_requests_hold() -> None:
    report = run(make_request("a", range(10, 18), num_new=1), num_pages=10)
    assert report.kv_in_use.peak == 0.2
    assert report.kv_in_use.mean == 0.2
    assert report.kv_occupied.mean == 0.2


def test_empty_workload_reports_zeros() -> None:
    report = run()
    assert report.num_steps == 0
    assert report.ttft is None
    assert report.output_tokens_per_second == 0.0


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
@pytest.mark.parametrize("num_pages", [40, 400])
def test_every_request_is_served_to_its_last_token(policy: str, num_pages: int) -> None:
    workload = generate(
        GeneratorConfig(
            num_requests=60, rate=0.5, shared_tokens=24, prompt_tokens=12, output_tokens=9, seed=4
        )
    )
    report = run_workload(workload, num_pages, scheduling_policy=policy, max_num_batched_tokens=32)
    too_large = [r for r in workload.requests if r.num_prompt_tokens + r.max_new_tokens > 4 * num_pages]
    assert report.num_refused <= len(too_large)
    assert report.num_finished + report.num_refused == 60
    if not report.num_refused:
        assert report.output_tokens == sum(request.max_new_tokens for request in workload.requests)
        assert report.prompt_tokens == sum(request.num_prompt_tokens for request in workload.requests)
        least = (
            report.prompt_tokens - report.cached_prompt_tokens + report.output_tokens - report.num_finished
        )
        assert report.computed_tokens >= least
        assert report.num_preemptions or report.computed_tokens == least
    assert report.kv_in_use.peak <= 1.0


def test_small_pool_preempts_and_still_finishes_everything() -> None:
    workload = from_lengths("w", [(20, 30)] * 6, [0.0] * 6)
    report = run_workload(workload, num_pages=30)
    assert report.num_finished == 6
    assert report.num_preemptions > 0
    assert report.output_tokens == 180


def test_same_arguments_give_the_same_report() -> None:
    workload = generate(GeneratorConfig(num_requests=40, shared_tokens=24, prompt_tokens=12, output_tokens=9))
    first, second = (run_workload(workload, 60, cost=TenthPerToken()) for _ in range(2))
    assert first == second


class StepByStep(Simulation):
    """The slow twin: plans every step."""

    def _skip(self, plan: SchedulePlan, load: StepLoad) -> list[float]:
        return []


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize(
    "config",
    [
        {"scheduling_policy": "fcfs"},
        {"scheduling_policy": "lpm", "max_num_batched_tokens": 24, "max_num_partial_prefills": 3},
        {"scheduling_policy": "dfs-weight", "long_prefill_token_threshold": 3},
        {"batching": "static", "enable_chunked_prefill": False, "max_num_seqs": 4},
        {"enable_prefix_caching": False, "max_num_seqs": 5},
        {"target_itl_ms": 900.0},
        {"preemption_mode": "auto", "num_host_pages": 8},
    ],
    ids=lambda config: "+".join(str(value) for value in config.values()),
)
def test_skipping_equal_steps_changes_no_figure(config: dict[str, object], page_size: int, seed: int) -> None:
    workload = generate(
        GeneratorConfig(
            num_requests=24,
            rate=0.05,
            shared_tokens=21,
            prompt_tokens=15,
            output_tokens=40,
            turns=2,
            seed=seed,
        )
    )
    tight, roomy = 640 // page_size, 6400 // page_size
    for num_pages in (tight, roomy):
        arguments = {"page_size": page_size, "cost": TenthPerToken(), **config}
        fast = run_workload(workload, num_pages, **arguments)
        slow = run_workload(workload, num_pages, kind=StepByStep, **arguments)
        assert fast == slow


def test_skipped_steps_are_not_planned() -> None:
    plans = 0

    class Counting(Simulation):
        def _step(self, plan: SchedulePlan) -> None:
            nonlocal plans
            plans += 1
            super()._step(plan)

    report = run_workload(from_lengths("w", [(8, 201)] * 3, [0.0] * 3), 400, page_size=16, kind=Counting)
    assert report.num_steps == 201
    assert plans < 40


class IdleScheduler:
    """Takes requests and never plans one."""

    config = SchedulerConfig()

    def add(self, request: object, now: float) -> None:
        pass

    def schedule(self, now: float) -> SchedulePlan:
        return SchedulePlan(0, (), empty_pairs(), empty_pairs(), empty_pairs(), (), 0, 0, now)

    def update(self, plan: object, result: object, now: float) -> list[object]:
        return []


def test_scheduler_that_never_plans_anything_is_an_error_not_a_hang() -> None:
    workload = Workload("stuck", (make_request("a", range(10, 15), 1),), 1)
    simulation = Simulation(workload, IdleScheduler(), PagePool(4, 4), OneSecondSteps())
    with pytest.raises(SimulationStalledError, match="0 requests run, 1 wait"):
        simulation.run()


def test_distribution_is_by_nearest_rank() -> None:
    assert Distribution.of([4.0, 1.0, 3.0, 2.0]) == Distribution(mean=2.5, p50=2.0, p99=4.0, max=4.0)
    assert Distribution.of([5.0, 1.0], counts=[1, 3]) == Distribution(mean=2.0, p50=1.0, p99=5.0, max=5.0)
    assert Distribution.of([]) is None


def test_level_meter_weighs_by_time() -> None:
    meter = LevelMeter(2)
    meter.hold(3.0, (1.0, 0.0))
    meter.hold(1.0, (5.0, 2.0))
    first, second = meter.levels()
    assert (first.mean, first.peak, second.mean, second.peak) == (2.0, 5.0, 0.5, 2.0)
