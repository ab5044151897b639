"""The real scheduler and prefix cache under a virtual clock: what would a machine that isn't here do?"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from trunkline.radix.pages import PagePool

from .errors import RequestTooLargeError, SchedulerError
from .fast_forward import FastForward
from .plan import SchedulePlan, StepResult, TokenOutput
from .request import Request
from .roofline import CostModel, StepLoad
from .scheduler import Scheduler
from .simulation_report import Distribution, LevelMeter, SimulationReport
from .workload import SimulatedRequest, Workload

Progress = Callable[[int, float], None]

_MAX_EMPTY_PLANS = 1000
# Token ids of workloads begin at 1.
_STOP_TOKEN = 0
_STOP = frozenset((_STOP_TOKEN,))


class SimulationStalledError(SchedulerError):
    """The scheduler has work but plans none of it, however long the virtual clock runs."""


@dataclass(slots=True)
class _Life:
    """What the simulator remembers of a request between its arrival and its end."""

    request: SimulatedRequest
    arrived: float
    last_token: float | None = None
    running: bool = False


class Simulation:
    """One run of a workload. Deterministic: the same arguments give the same report, to the last bit.

    The loop is the engine's own, schedule, run, update, with a price in place of the forward pass: a step
    lasts what `cost_model` says, and every request samples made-up tokens until its recorded output length.

    Args:
        scheduler: a fresh one; nobody else may use it.
        pool: the page pool of the scheduler's cache, read for the memory figures.
        asked_tokens: what every client asks for at most, so that the scheduler must guess lengths;
            None: it is told the exact lengths.
    """

    def __init__(
        self,
        workload: Workload,
        scheduler: Scheduler,
        pool: PagePool,
        cost_model: CostModel,
        asked_tokens: int | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._cost_model = cost_model
        self._asked_tokens = asked_tokens or 0
        self._now = 0.0
        self._lives: dict[str, _Life] = {}
        self._num_running = 0
        self._num_requests = len(workload)
        self._followers: defaultdict[str, list[SimulatedRequest]] = defaultdict(list)
        self._arrivals: list[tuple[float, int, SimulatedRequest]] = []
        for request in workload.requests:
            if request.after is None:
                self._arrivals.append((request.arrival_time, len(self._arrivals), request))
            else:
                self._followers[request.after].append(request)
        heapify(self._arrivals)
        self._num_arrivals = len(self._arrivals)
        self._counts = _Counts()
        self._meter = LevelMeter(4)
        self._ttft: array[float] = array("d")
        self._end_to_end: array[float] = array("d")
        self._gaps: array[float] = array("d")
        self._gap_counts: array[int] = array("q")
        self._fast_forward = FastForward(scheduler.config, pool.page_size)
        self._num_skipped = 0

    def run(self, progress: Progress | None = None) -> SimulationReport:
        """Serve every request of the workload.

        Args:
            progress: hears how many are done and the virtual time, each time some more are.

        Raises:
            SimulationStalledError: says how many requests wait and run.
        """
        empty_plans = done = 0
        while self._lives or self._arrivals:
            if not self._lives:
                self._hold_until(max(self._now, self._arrivals[0][0]))
            self._let_arrive()
            if not self._lives:
                continue
            plan = self._scheduler.schedule(self._now)
            empty_plans = 0 if plan.num_tokens else empty_plans + 1
            if empty_plans > _MAX_EMPTY_PLANS:
                raise SimulationStalledError(
                    f"{_MAX_EMPTY_PLANS} plans in a row are empty at second {self._now:.3f}: "
                    f"{self._num_running} requests run, {len(self._lives) - self._num_running} wait"
                )
            self._step(plan)
            if progress is not None and self._counts.finished > done:
                done = self._counts.finished
                progress(done + self._counts.refused, self._now)
        return self._report()

    def _let_arrive(self) -> None:
        """Hand the scheduler everything that has arrived by now."""
        while self._arrivals and self._arrivals[0][0] <= self._now:
            arrived, _, request = heappop(self._arrivals)
            try:
                self._scheduler.add(self._ask(request, arrived), self._now)
            except RequestTooLargeError:
                self._counts.refused += 1
                self._let_follow(request.id)
            else:
                self._lives[request.id] = _Life(request, arrived)

    def _ask(self, request: SimulatedRequest, arrived: float) -> Request:
        return Request(
            request.id,
            request.prompt(),
            max(request.max_new_tokens, self._asked_tokens),
            stop_token_ids=_STOP,
            arrival_time=arrived,
        )

    def _let_follow(self, finished: str) -> None:
        """The turns after a finished request arrive when their think time is over."""
        for follower in self._followers.pop(finished, ()):
            heappush(self._arrivals, (self._now + follower.arrival_time, self._num_arrivals, follower))
            self._num_arrivals += 1

    def _step(self, plan: SchedulePlan) -> None:
        self._see_running(plan)
        load = self._load(plan)
        seconds = self._cost_model.step_seconds(load)
        self._hold_until(self._now + seconds)
        self._counts.steps += 1
        self._counts.computed_tokens += load.tokens
        later = self._skip(plan, load)
        tokens = {
            request.id: self._sample(request.id, request.num_output_tokens, 1 + len(later))
            for request in plan.scheduled
            if request.samples
        }
        elapsed = 0.0 if self._fast_forward.is_possible else seconds
        for output in self._scheduler.update(plan, StepResult(tokens, elapsed=elapsed), self._now):
            self._record(output)
        if later:
            self._pass(plan, later)

    def _load(self, plan: SchedulePlan) -> StepLoad:
        """What a plan costs; of what it computes after skipped steps, those have been paid for."""
        if not self._num_skipped:
            return StepLoad.of(plan)
        assert all(len(request.tokens) == 1 + self._num_skipped for request in plan.scheduled)
        return StepLoad.of_chunks((1, request.start + self._num_skipped, True) for request in plan.scheduled)

    def _skip(self, plan: SchedulePlan, load: StepLoad) -> list[float]:
        """The ends of the steps that need no plan of their own, see `FastForward`."""
        ends: list[float] = []
        if len(plan.scheduled) == len(self._lives) == load.tokens:
            end = self._now
            next_arrival = self._arrivals[0][0] if self._arrivals else float("inf")
            left = [
                self._lives[request.id].request.max_new_tokens - request.num_output_tokens
                for request in plan.scheduled
            ]
            for step in range(1, 1 + self._fast_forward.num_alike(plan, left)):
                end += self._cost_model.step_seconds(load.later(step))
                if end >= next_arrival:
                    break
                ends.append(end)
        self._num_skipped = len(ends)
        return ends

    def _pass(self, plan: SchedulePlan, ends: list[float]) -> None:
        """Live through skipped steps."""
        size = len(plan.scheduled)
        for end in ends:
            self._gaps.append(end - self._now)
            self._gap_counts.append(size)
            self._hold_until(end)
        self._counts.steps += len(ends)
        self._counts.computed_tokens += len(ends) * size
        for request in plan.scheduled:
            self._lives[request.id].last_token = self._now

    def _sample(self, name: str, first: int, count: int) -> Sequence[int]:
        """The made-up tokens of a request from number `first` on; its very last one is the stop token."""
        request = self._lives[name].request
        if first + 1 == request.max_new_tokens:
            return (_STOP_TOKEN,)
        return range(request.output_start + first, request.output_start + first + count)

    def _see_running(self, plan: SchedulePlan) -> None:
        """Keep count of who runs. Preemptions come first: nobody is preempted and planned in one step."""
        self._counts.preemptions += len(plan.preempted)
        for name in plan.preempted:
            self._lives[name].running = False
            self._num_running -= 1
        for request in plan.scheduled:
            life = self._lives[request.id]
            if not life.running:
                life.running = True
                self._num_running += 1

    def _hold_until(self, time: float) -> None:
        """Let the clock run while everything stays as it is."""
        seconds, self._now = time - self._now, time
        pool = self._pool
        in_use = pool.num_in_use / pool.num_pages
        occupied = (pool.num_pages - pool.num_free) / pool.num_pages
        self._meter.hold(seconds, (in_use, occupied, self._num_running, len(self._lives) - self._num_running))

    def _record(self, output: TokenOutput) -> None:
        life = self._lives[output.id]
        if output.tokens:
            if life.last_token is None:
                self._ttft.append(self._now - life.arrived)
            else:
                self._gaps.append(self._now - life.last_token)
                self._gap_counts.append(1)
            life.last_token = self._now
            self._counts.output_tokens += len(output.tokens)
        if output.finish_reason is None:
            return
        counts = self._counts
        if output.finish_reason == "error":
            counts.failed += 1
        else:
            counts.finished += 1
            counts.prompt_tokens += life.request.num_prompt_tokens
            counts.cached_tokens += output.num_cached_tokens
            self._end_to_end.append(self._now - life.arrived)
        self._num_running -= life.running
        del self._lives[output.id]
        self._let_follow(output.id)

    def _report(self) -> SimulationReport:
        counts, seconds = self._counts, self._now
        time = seconds or 1.0
        kv_in_use, kv_occupied, running, queued = self._meter.levels()
        return SimulationReport(
            num_requests=self._num_requests,
            num_finished=counts.finished,
            num_refused=counts.refused,
            num_failed=counts.failed,
            seconds=seconds,
            num_steps=counts.steps,
            prompt_tokens=counts.prompt_tokens,
            cached_prompt_tokens=counts.cached_tokens,
            computed_tokens=counts.computed_tokens,
            output_tokens=counts.output_tokens,
            output_tokens_per_second=counts.output_tokens / time,
            total_tokens_per_second=(counts.output_tokens + counts.prompt_tokens) / time,
            requests_per_second=counts.finished / time,
            hit_rate=counts.cached_tokens / counts.prompt_tokens if counts.prompt_tokens else 0.0,
            ttft=Distribution.of(self._ttft),
            itl=Distribution.of(self._gaps, self._gap_counts),
            end_to_end=Distribution.of(self._end_to_end),
            kv_in_use=kv_in_use,
            kv_occupied=kv_occupied,
            running=running,
            queued=queued,
            num_preemptions=counts.preemptions,
        )


@dataclass(slots=True)
class _Counts:
    """Running totals of a simulation."""

    finished: int = 0
    failed: int = 0
    refused: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
