"""What the scheduler costs and what its orders bring; no model, under a minute without arguments.

    python benchmarks/scheduler.py [--waiting 1000 10000] [--running 256] [--steps 300]

1. Milliseconds of a step (schedule + update) with many waiting requests of 2,000 tokens, while some finish, some are
   admitted and prompts land in every step; the forward pass costs nothing here.
2. Hit rates of the policies on a shuffled tree workload, beside the best that any order can reach.
3. A burst of equal prompts: computed tokens against the least possible.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np

from trunkline.radix.pages import PagePool
from trunkline.radix.prefix_cache import PrefixCache
from trunkline.scheduler.config import SchedulerConfig
from trunkline.scheduler.plan import SchedulePlan, StepResult
from trunkline.scheduler.request import Request
from trunkline.scheduler.scheduler import Scheduler

PAGE_SIZE = 16
POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "random")


def answer(plan: SchedulePlan) -> StepResult:
    """A token for everybody who samples."""
    return StepResult({scheduled.id: (7,) for scheduled in plan.scheduled if scheduled.samples})


def make_scheduler(num_pages: int, **settings: object) -> Scheduler:
    cache = PrefixCache(PagePool(num_pages, PAGE_SIZE))
    return Scheduler(cache, SchedulerConfig.from_mapping(settings))


def steps_until_done(scheduler: Scheduler) -> Iterator[SchedulePlan]:
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        yield plan
        scheduler.update(plan, answer(plan), 0.0)


def crowd(count: int, length: int, group_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Prompts of which `group_size` at a time share their first half."""
    for index in range(count):
        if index % group_size == 0:
            shared = rng.integers(0, 32_000, length // 2)
        yield np.concatenate([shared, rng.integers(0, 32_000, length - length // 2)]).astype(np.int32)


def measure_steps(
    policy: str, num_waiting: int, num_running: int, num_steps: int, length: int
) -> dict[str, float]:
    """Median, 95th percentile and mean of a step in milliseconds, and counted work per step."""
    rng = np.random.default_rng(0)
    scheduler = make_scheduler(80_000, scheduling_policy=policy, max_num_seqs=num_running)
    prompts = crowd(num_running, 500, 8, rng)
    for index, prompt in enumerate(prompts):
        scheduler.add(Request(f"first-{index}", prompt, int(rng.integers(100, 400))), 0.0)
    while scheduler.stats().now_running < num_running:
        plan = scheduler.schedule(0.0)
        scheduler.update(plan, answer(plan), 0.0)
    began = time.perf_counter()
    order = rng.permutation(num_waiting)
    prompts_waiting = list(crowd(num_waiting, length, 8, rng))
    for index in order:
        scheduler.add(Request(f"next-{index}", prompts_waiting[index], int(rng.integers(100, 400))), 0.0)
    add_ms = (time.perf_counter() - began) * 1000 / num_waiting
    examined = scheduler.stats().candidates_examined + scheduler.stats().match_updates
    admitted = scheduler.stats().num_admitted
    times = []
    for _ in range(num_steps):
        began = time.perf_counter()
        plan = scheduler.schedule(0.0)
        middle = time.perf_counter()
        result = answer(plan)
        resumed = time.perf_counter()
        scheduler.update(plan, result, 0.0)
        times.append((middle - began + time.perf_counter() - resumed) * 1000)
    stats = scheduler.stats()
    return {
        "p50_ms": statistics.median(times),
        "p95_ms": statistics.quantiles(times, n=20)[-1],
        "mean_ms": statistics.fmean(times),
        "add_ms": add_ms,
        "looked_at": (stats.candidates_examined + stats.match_updates - examined) / num_steps,
        "admitted": (stats.num_admitted - admitted) / num_steps,
    }


def tree_workload(documents: int, questions: int, length: int, tail: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    prompts = []
    for _ in range(documents):
        document = rng.integers(0, 32_000, length)
        prompts.extend(
            np.concatenate([document, rng.integers(0, 32_000, tail)]).astype(np.int32)
            for _ in range(questions)
        )
    return [prompts[index] for index in rng.permutation(len(prompts))]


def hit_rate(policy: str, prompts: list[np.ndarray], num_pages: int, max_new_tokens: int) -> float:
    scheduler = make_scheduler(
        num_pages, scheduling_policy=policy, max_num_seqs=8, max_num_batched_tokens=512
    )
    for index, prompt in enumerate(prompts):
        scheduler.add(Request(f"q{index}", prompt, max_new_tokens), 0.0)
    for _ in steps_until_done(scheduler):
        pass
    return scheduler.stats().hit_rate


def measure_burst(count: int, length: int) -> tuple[int, int]:
    """Computed tokens of equal prompts that arrive together, and the least that is possible."""
    scheduler = make_scheduler(4096, max_num_batched_tokens=512)
    prompt = np.random.default_rng(1).integers(0, 32_000, length).astype(np.int32)
    for index in range(count):
        scheduler.add(Request(f"twin-{index}", prompt, 1), 0.0)
    return sum(plan.num_tokens for plan in steps_until_done(scheduler)), length + count - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--length", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()

    print(
        f"step of {arguments.running} running, prompts of {arguments.length} tokens (schedule + update, ms)"
    )
    print(
        f"{'policy':<12}{'waiting':>9}{'p50':>8}{'p95':>8}{'mean':>8}{'add':>8}{'looked at':>11}{'admitted':>10}"
    )
    for policy in ("fcfs", "lpm", "dfs-weight"):
        for waiting in arguments.waiting:
            row = measure_steps(policy, waiting, arguments.running, arguments.steps, arguments.length)
            print(
                f"{policy:<12}{waiting:>9}{row['p50_ms']:>8.2f}{row['p95_ms']:>8.2f}{row['mean_ms']:>8.2f}"
                f"{row['add_ms']:>8.3f}{row['looked_at']:>11.1f}{row['admitted']:>10.2f}"
            )

    documents, questions, length, tail, new_tokens = 8, 8, 1024, 32, 8
    prompts = tree_workload(documents, questions, length, tail, seed=3)
    num_pages = 3 * (length + 8 * (tail + new_tokens)) // PAGE_SIZE
    best = 1 - (documents * length + len(prompts) * tail) / (len(prompts) * (length + tail))
    print(
        f"\n{documents} documents x {questions} questions, shuffled, pool for 3 documents; best possible {best:.1%}"
    )
    for policy in POLICIES:
        rate = hit_rate(policy, prompts, num_pages, new_tokens)
        print(f"{policy:<12}{rate:>8.1%}{rate / best:>8.1%} of the best")

    computed, least = measure_burst(64, 4_000)
    print(f"\n64 equal prompts of 4000 tokens: {computed} tokens computed, {least} are the least possible")


if __name__ == "__main__":
    main()
