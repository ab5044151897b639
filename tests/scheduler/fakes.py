"""A runner without a model: KV memory that stores what each position depends on, and answers that follow from it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np

from trunkline.radix.config import RadixConfig
from trunkline.radix.pages import PagePool
from trunkline.radix.prefix_cache import PrefixCache
from trunkline.scheduler.config import SchedulerConfig
from trunkline.scheduler.plan import (
    PENDING_TOKEN,
    ScheduledRequest,
    SchedulePlan,
    StepResult,
    TokenOutput,
)
from trunkline.scheduler.request import Request
from trunkline.scheduler.scheduler import Scheduler

MASK = (1 << 64) - 1
VOCAB = 1000


def fold(value: int, token: int) -> int:
    """What position p depends on: all tokens up to p."""
    return ((value ^ (token + 1)) * 0x9E3779B97F4A7C15 + (value >> 29)) & MASK


def next_token(value: int) -> int:
    """The token that greedy decoding gives after a history."""
    return (value >> 17) % VOCAB


def answer_of(prompt: np.ndarray, count: int, seed: int = 0) -> list[int]:
    """The `count` tokens that follow a prompt, from first principles."""
    value = seed
    for token in prompt.tolist():
        value = fold(value, token)
    tokens = []
    for _ in range(count):
        tokens.append(next_token(value))
        value = fold(value, tokens[-1])
    return tokens


class FakeRunner:
    """Executes plans on fake pages, in the order that a plan asks for, and checks what every token would read.

    A page slot stores the fold of all tokens up to its position. Before a token is computed, every slot before it
    must hold what the request's own history folds to: a page that was shared, copied, evicted or swapped wrongly
    fails here, at the step where it is read.
    """

    def __init__(self, num_pages: int, page_size: int, num_host_pages: int = 0) -> None:
        self.page_size = page_size
        self.kv = np.zeros((num_pages + 1, page_size), dtype=np.uint64)
        self.host = np.zeros((num_host_pages + 1, page_size), dtype=np.uint64)
        self.folds: dict[str, list[int]] = {}
        self.num_computed = 0

    def run(self, plan: SchedulePlan, failed: Mapping[str, str] | None = None) -> StepResult:
        for device, host in plan.swap_out.tolist():
            self.host[host] = self.kv[device]
        for source, target in plan.page_copies.tolist():
            self.kv[target] = self.kv[source]
        for host, device in plan.swap_in.tolist():
            self.kv[device] = self.host[host]
        for scheduled in plan.scheduled:
            self._write(scheduled)
        tokens = {s.id: [next_token(self._read(s))] for s in plan.scheduled if s.samples}
        self.num_computed += plan.num_tokens
        assert plan.num_tokens == sum(len(s.tokens) for s in plan.scheduled)
        return StepResult(tokens, failed or {})

    def _write(self, scheduled: ScheduledRequest) -> None:
        start, end = scheduled.start, scheduled.start + len(scheduled.tokens)
        assert len(scheduled.pages) * self.page_size >= end
        assert np.array_equal(scheduled.history[start:end], scheduled.tokens)
        folds = self.folds.setdefault(scheduled.id, [])
        for token in scheduled.history[len(folds) : end].tolist():
            folds.append(fold(folds[-1] if folds else 0, token))
        positions = np.arange(start, end)
        self.kv[scheduled.pages[positions // self.page_size], positions % self.page_size] = folds[start:end]

    def _read(self, scheduled: ScheduledRequest) -> int:
        end = scheduled.start + len(scheduled.tokens)
        folds = np.array(self.folds[scheduled.id][:end], dtype=np.uint64)
        stored = self.kv[scheduled.pages].reshape(-1)[:end]
        if not np.array_equal(stored, folds):
            bad = int((stored != folds).argmax())
            raise AssertionError(f"{scheduled.id} reads something else at position {bad} of {end}")
        return int(stored[-1])


class LateRunner(FakeRunner):
    """Computes nothing before a result is asked for, and then from what the plan held when it was launched.

    So whatever reads a token early finds `PENDING_TOKEN`, and a page that the host gave to somebody else in the
    meantime is written in the order in which a device would.
    """

    def __init__(self, num_pages: int, page_size: int, num_host_pages: int = 0) -> None:
        super().__init__(num_pages, page_size, num_host_pages)
        self.launched: deque[SchedulePlan] = deque()
        self._sampled: Mapping[str, Any] = {}

    def launch(self, plan: SchedulePlan) -> None:
        for row in plan.scheduled:
            known = row.history[:-1] if row.pending else row.history
            assert (known >= 0).all()
            assert not row.pending or row.tokens.tolist() == [PENDING_TOKEN] == row.history[-1:].tolist()
        copies = [
            row._replace(tokens=row.tokens.copy(), pages=row.pages.copy(), history=row.history.copy())
            for row in plan.scheduled
        ]
        self.launched.append(replace(plan, scheduled=tuple(copies)))

    def result(self, failed: Mapping[str, str] | None = None) -> StepResult:
        """Of the plan that was launched first."""
        plan = self.launched.popleft()
        for row in plan.scheduled:
            if row.pending:
                row.tokens[:] = row.history[-1:] = self._sampled[row.id]
        result = self.run(plan, failed)
        self._sampled = result.tokens
        return result


@dataclass
class House:
    """A cache, a scheduler and a fake runner that belong together."""

    cache: PrefixCache
    scheduler: Scheduler
    runner: LateRunner
    now: float = 0.0
    answers: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, TokenOutput] = field(default_factory=dict)
    plans: list[SchedulePlan] = field(default_factory=list)
    check: bool = True
    overlap: bool = False
    in_flight: deque[SchedulePlan] = field(default_factory=deque)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request, self.now)

    def step(self, failed: Mapping[str, str] | None = None, seconds: float = 0.01) -> list[TokenOutput]:
        if not self.in_flight:
            self.launch()
        if self.overlap and self.scheduler.may_schedule:
            self.launch()
        return self.land(failed, seconds)

    def launch(self) -> SchedulePlan:
        plan = self.scheduler.schedule(self.now)
        self.plans.append(plan)
        self.in_flight.append(plan)
        self.runner.launch(plan)
        if self.check:
            self.scheduler.check()
        return plan

    def land(self, failed: Mapping[str, str] | None = None, seconds: float = 0.01) -> list[TokenOutput]:
        plan = self.in_flight.popleft()
        result = self.runner.result(failed)
        self.now += seconds
        outputs = self.scheduler.update(plan, result, self.now)
        self.note(outputs)
        if self.check:
            self.scheduler.check()
        return outputs

    def note(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            assert output.id not in self.ends
            self.answers.setdefault(output.id, []).extend(output.tokens)
            if output.finish_reason is not None:
                self.ends[output.id] = output

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left; a scheduler that does not end is a failure."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still {self.scheduler.stats()} after {max_steps} steps")

    def is_idle_and_clean(self) -> bool:
        """Nobody holds a page, device or host."""
        stats = self.scheduler.stats()
        return self.cache.pool.num_in_use == 0 and stats.now_host_pages == 0 and not self.scheduler.has_work


def make_house(
    num_pages: int = 256,
    page_size: int = 16,
    *,
    eviction_policy: str = "lru",
    check: bool = True,
    overlap: bool = False,
    **config: Any,
) -> House:
    settings = SchedulerConfig(**config)
    pool = PagePool(num_pages, page_size)
    cache = PrefixCache(pool, RadixConfig(page_size=page_size, eviction_policy=eviction_policy))
    runner = LateRunner(num_pages, page_size, settings.num_host_pages)
    return House(cache, Scheduler(cache, settings), runner, check=check, overlap=overlap)


def make_tokens(length: int, seed: int = 0) -> np.ndarray:
    """Tokens that differ from those of every other seed, from the first on (almost surely)."""
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.int32)


def make_request(
    request_id: str, prompt: np.ndarray | int = 32, max_new_tokens: int = 4, **fields: Any
) -> Request:
    """A request; an integer prompt is a length, with tokens that depend on the id."""
    if isinstance(prompt, int):
        prompt = make_tokens(prompt, crc32(request_id.encode()))
    return Request(request_id, prompt, max_new_tokens, **fields)
