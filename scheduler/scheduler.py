"""The scheduler: requests in, a plan per step out, results back in."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from trunkline.radix.errors import RadixError
from trunkline.radix.hashing import validate_namespace
from trunkline.radix.prefix_cache import PrefixCache
from trunkline.radix.tokens import validate_tokens

from .checks import check_scheduler
from .config import SchedulerConfig
from .cost import StepCostModel
from .draft import StepDraft
from .errors import DuplicateRequestError, InvalidRequestError, PlanError, RequestTooLargeError
from .lifecycle import Lifecycle
from .plan import SchedulePlan, StepResult, TokenOutput
from .planner import Planner
from .request import FinishReason, Request
from .state import Ending, RequestState
from .stats import SchedulerStats


class Scheduler:
    """Decides which tokens run next; the same code under an engine, a test or a simulated clock.

    A step is `schedule` → run → `update`. Between the two, `add`, `abort` and `finish` may be called; pages that
    a plan in flight still writes are given back by its `update`. Where `may_schedule` says so, the next step may be
    planned before the last one's `update`; plans are run and answered in their order. The time is whatever the
    caller passes as `now`, in seconds; same calls, same plans.
    """

    def __init__(self, cache: PrefixCache, config: SchedulerConfig | None = None) -> None:
        self.config = SchedulerConfig() if config is None else config
        self.cache = cache
        self._stats = SchedulerStats()
        self._cost = StepCostModel()
        self._lives = Lifecycle(cache, self.config, self._stats)
        self._planner = Planner(self._lives, self.config, self._cost)
        self._states: dict[str, RequestState] = {}
        self._step = 0
        self._updated_at = 0.0
        self._in_flight: deque[tuple[SchedulePlan, StepDraft]] = deque()
        self._pending_outputs: list[TokenOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether there is anything to schedule, to update or to report."""
        return bool(self._states or self._in_flight or self._pending_outputs)

    @property
    def may_schedule(self) -> bool:
        """Whether `schedule` can be called now: no plan is in flight, or one that the next need not wait for.

        Needed, and then waited for, are tokens for sequential requests, and pages that must be taken from somebody.
        False also where the plan in flight leaves nothing to do. O(requests in it).
        """
        if not self._in_flight:
            return True
        if len(self._in_flight) > 1:
            return False
        plan, draft = self._in_flight[0]
        if draft.is_blocked or all(state.is_done for state in self._states.values()):
            return False
        rows = zip(plan.scheduled, draft.chosen, strict=True)
        return not any(row.samples and state.request.is_sequential for row, state in rows)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait. Raises `InvalidRequestError` or one of its kinds; then nothing is changed.

        O(prompt length) for the hashes of its pages and the first match.
        """
        self._validate(request)
        self._states[request.id] = self._lives.new(request, self._step)

    def abort(self, request_id: str, now: float) -> TokenOutput | None:
        """End a request wherever it is; None if it is not known (any more). What is computed stays cached."""
        return self.finish(request_id, "abort", now)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> TokenOutput | None:
        """End a request for a reason that the caller saw (a stop string); returns its last output.

        None if the request is not known (any more). With the reason "error" nothing more of it enters the
        cache.
        """
        state = self._states.pop(request_id, None)
        if state is None:
            return None
        self._close(state, reason)
        return self._ended(state, (), reason)

    def schedule(self, now: float) -> SchedulePlan:
        """Plan the next step. Raises `PlanError` if that has to wait for an `update` (see `may_schedule`)."""
        if not self.may_schedule:
            raise PlanError(f"the plan of step {self._step} is not answered by update() yet")
        self._step += 1
        self._stats.num_steps += 1
        self._lives.refresh(self._step)
        draft = self._planner.fill(self._step, is_ahead=bool(self._in_flight))
        for state in draft.stuck:
            self._give_up(state)
        plan = draft.freeze(now)
        self._in_flight.append((plan, draft))
        return plan

    def update(self, plan: SchedulePlan, result: StepResult, now: float) -> list[TokenOutput]:
        """Take a step's result; returns the news of every request that sampled or ended, in the plan's order.

        Raises `PlanError`, with nothing changed, when `plan` is not the oldest in flight, the result lacks a token,
        or has several where the next plan counts on one.
        """
        draft = self._answer(plan, result)
        outputs, self._pending_outputs = self._pending_outputs, []
        for host_pages in draft.returned_host_pages:
            self._lives.host.give_back(host_pages)
        for state in draft.admitted:
            if state.lease is not None:
                self.cache.copied(state.lease)
        self._learn(plan, draft, result, now)
        step, tokens, failed = self._step, result.tokens, result.failed
        for row, (state, count) in zip(plan.scheduled, draft.chosen.items(), strict=True):
            if state.ending is not None or (failed and state.id in failed):
                self._end_in_flight(state, count, failed.get(state.id), outputs)
                continue
            landed = state.num_landed = state.num_landed + count
            if count != 1:
                state.progress_step = step
            if landed >= state.commit_at:
                self._lives.commit(state)
            if row.samples:
                outputs.append(self._sampled(state, tokens[state.id]))
        return outputs

    def stats(self) -> SchedulerStats:
        """Counters since the start and gauges of now; a copy. O(running)."""
        lives = self._lives
        num_running = sum(state.ending is None for state in lives.running)
        return replace(
            self._stats,
            now_waiting=len(self._states) - num_running - lives.num_preempted,
            now_preempted=lives.num_preempted,
            now_parked=lives.in_flight.num_parked,
            now_running=num_running,
            now_in_flight_pages=len(lives.in_flight.owners),
            now_host_pages=lives.host.num_in_use,
        )

    def predict_step_seconds(self, num_tokens: int, num_attended: int) -> float:
        """What the fitted cost model expects of a step; 0.0 before the first measured one."""
        return self._cost.predict(num_tokens, num_attended)

    def check(self) -> None:
        """Recompute every invariant; raises `InvariantError` (or the radix room's) with what contradicts."""
        check_scheduler(self._lives, list(self._states.values()), list(self._in_flight), self._step)

    def _validate(self, request: Request) -> None:
        name = f"request {request.id!r}"
        if request.id in self._states:
            raise DuplicateRequestError(f"{name} is still alive")
        try:
            validate_tokens(request.prompt)
            validate_namespace(request.namespace)
        except RadixError as error:
            raise InvalidRequestError(f"{name}: {error}") from error
        num_prompt = len(request.prompt)
        if not num_prompt:
            raise InvalidRequestError(f"{name} has an empty prompt")
        if request.max_new_tokens < 1:
            raise InvalidRequestError(
                f"{name}: max_new_tokens must be at least 1, not {request.max_new_tokens}"
            )
        if not 0 <= request.min_new_tokens <= request.max_new_tokens:
            raise InvalidRequestError(
                f"{name}: min_new_tokens must be 0..max_new_tokens ({request.max_new_tokens}), "
                f"not {request.min_new_tokens}"
            )
        if request.logits_from is not None and request.logits_from < 0:
            raise InvalidRequestError(f"{name}: logits_from must be a position, not {request.logits_from}")
        # The last token that is generated is never computed, so it needs no place.
        needed = num_prompt + request.max_new_tokens - 1
        capacity = self.cache.pool.num_pages * self.cache.page_size
        if needed > capacity:
            detail = f"prompt {num_prompt} + max_new_tokens {request.max_new_tokens} - 1"
            raise RequestTooLargeError(request.id, needed, capacity, detail)

    def _answer(self, plan: SchedulePlan, result: StepResult) -> StepDraft:
        """The draft behind the plan that `result` answers, which is then no longer outstanding."""
        if not self._in_flight or self._in_flight[0][0] is not plan:
            raise PlanError(f"update() got the plan of step {plan.step}, which is not the oldest in flight")
        draft = self._in_flight[0][1]
        tokens = result.tokens
        lacking = [s.id for s in plan.scheduled if s.samples and not tokens.get(s.id)]
        if lacking:
            ended = {state.id for state in draft.chosen if state.ending is not None}
            for request_id in lacking:
                if request_id not in ended and request_id not in result.failed:
                    raise PlanError(f"the result of step {plan.step} has no token for request {request_id!r}")
        if len(self._in_flight) > 1:
            for state in self._in_flight[1][1].chosen:
                if len(tokens.get(state.id, ())) > 1 and state.ending is None:
                    raise PlanError(
                        f"step {plan.step} has {len(tokens[state.id])} tokens for request {state.id!r}, "
                        f"but step {plan.step + 1} is planned on one"
                    )
        self._in_flight.popleft()
        return draft

    def _close(self, state: RequestState, reason: FinishReason) -> None:
        """Let a request end: now, or when the last plan in flight that writes its pages has run."""
        if any(state in draft.chosen for _, draft in self._in_flight):
            state.ending = Ending(reason)
            self._lives.in_flight.withdraw(state)
        else:
            self._lives.end(state, keep=reason != "error")

    def _learn(self, plan: SchedulePlan, draft: StepDraft, result: StepResult, now: float) -> None:
        """Feed what the step took to those who predict, and what it computed to those who count."""
        self._stats.num_computed_tokens += plan.num_tokens
        # A plan that was made while another one ran began when that one ended.
        began = max(plan.scheduled_at, self._updated_at) if draft.is_ahead else plan.scheduled_at
        self._updated_at = now
        elapsed = now - began if result.elapsed is None else result.elapsed
        if plan.num_tokens and elapsed > 0:
            self._cost.observe(plan.num_tokens, plan.num_attended, elapsed)
            if 2 * draft.budget.prompt_tokens > plan.num_tokens:
                self._lives.rates.observe_compute(plan.num_tokens, elapsed)
        num_copied = len(plan.swap_out) + len(plan.swap_in)
        if num_copied and result.copy_elapsed is not None:
            self._lives.rates.observe_copy(num_copied, result.copy_elapsed)
        if self.config.fair_share_quantum is not None:
            for state, count in draft.chosen.items():
                self._lives.served.charge(state.request.namespace, count)

    def _sampled(self, state: RequestState, tokens: Sequence[int]) -> TokenOutput:
        """Add sampled tokens to a request, up to the first that ends it."""
        request = state.request
        stops, most = request.stop_token_ids, state.most_tokens
        before = state.num_known
        for token in tokens:
            state.learn(token)
            known = state.num_known
            if token in stops and known - state.num_prompt >= request.min_new_tokens:
                return self._completed(state, tuple(tokens[: known - before]), "stop", token)
            if known >= most:
                return self._completed(state, tuple(tokens[: known - before]), "length", None)
        if len(tokens) > 1:
            state.num_tokens = state.num_known
        self._stats.num_output_tokens += len(tokens)
        cached, preemptions = state.num_cached_tokens, state.num_preemptions
        return TokenOutput(state.id, tuple(tokens), None, None, cached, preemptions)

    def _completed(
        self, state: RequestState, tokens: tuple[int, ...], reason: FinishReason, stop_token: int | None
    ) -> TokenOutput:
        del self._states[state.id]
        self._stats.num_output_tokens += len(tokens)
        self._lives.lengths.record(state.num_output)
        self._close(state, reason)
        return self._ended(state, tokens, reason, stop_token)

    def _end_in_flight(
        self, state: RequestState, count: int, failure: str | None, outputs: list[TokenOutput]
    ) -> None:
        """A request of the step failed in it, or ended while it ran: what it sampled is discarded.

        What was computed from a token that is discarded does not count as landed, so it never enters the cache.
        """
        ending = state.ending
        if failure is None:
            assert ending is not None
            state.num_landed = min(state.num_landed + count, state.num_known)
            self._close(state, ending.reason)
            return
        self._close(state, "error")
        if ending is None:
            del self._states[state.id]
            outputs.append(self._ended(state, (), "error", error=failure))

    def _give_up(self, state: RequestState) -> None:
        del self._states[state.id]
        self._lives.end(state)
        error = (
            f"no page can be freed for request {state.id!r} ({state.num_tokens} tokens): all of the "
            f"{self.cache.pool.num_pages} pages that it does not hold are pinned"
        )
        self._pending_outputs.append(self._ended(state, (), "error", error=error))

    def _ended(
        self,
        state: RequestState,
        tokens: tuple[int, ...],
        reason: FinishReason,
        stop_token: int | None = None,
        error: str | None = None,
    ) -> TokenOutput:
        match reason:
            case "stop":
                self._stats.num_stopped += 1
            case "length":
                self._stats.num_length += 1
            case "abort":
                self._stats.num_aborted += 1
            case "error":
                self._stats.num_failed += 1
        cached, preemptions = state.num_cached_tokens, state.num_preemptions
        return TokenOutput(state.id, tokens, reason, stop_token, cached, preemptions, error)
