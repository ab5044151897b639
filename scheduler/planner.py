"""Which tokens run next: decodes, then prompts that were begun, then those who wait."""

from .admission import Admission
from .config import SchedulerConfig
from .cost import StepBudget, StepCostModel
from .draft import StepDraft
from .lifecycle import Lifecycle
from .request import Status
from .state import RequestState


class Planner:
    """Fills a `StepDraft`; everything that changes a request goes through the `Lifecycle`."""

    def __init__(self, lives: Lifecycle, config: SchedulerConfig, cost: StepCostModel) -> None:
        self._lives = lives
        self._config = config
        self._cost = cost
        self._page_size = lives.page_size
        self._admission = Admission(lives, config)

    def fill(self, step: int, is_ahead: bool) -> StepDraft:
        """Plan one step; `draft.stuck` lists those for whom no page can ever be freed.

        `is_ahead`: another plan is in flight. Then nobody is preempted (see `StepDraft.is_blocked`).
        """
        config = self._config
        budget = StepBudget(
            config.max_num_batched_tokens,
            max_chunk=config.long_prefill_token_threshold,
            whole_prompts=not config.enable_chunked_prefill,
        )
        draft = StepDraft(step, budget, is_ahead)
        begun = self._decode(draft)
        self._limit_time(draft)
        for state in begun:
            if state.status is Status.RUNNING:
                self._continue_prompt(state, draft)
        # While those who run take pages from each other, nobody else comes in.
        if not draft.preempted and not draft.is_blocked:
            self._admission.admit(draft)
        return draft

    def _decode(self, draft: StepDraft) -> list[RequestState]:
        """Let every running request with one token to compute do so; returns the others."""
        begun = []
        chosen = draft.chosen
        running = list(self._lives.running)
        if draft.is_ahead:
            draft.num_done = len(running)
            running = [state for state in running if not state.is_done]
            draft.num_done -= len(running)
        for state in running:
            if state.status is not Status.RUNNING:
                continue
            if state.num_tokens - state.num_computed != 1:
                begun.append(state)
            elif state.num_tokens <= state.capacity or self._grow(state, state.num_tokens, draft):
                chosen[state] = 1
        draft.budget.tokens -= len(chosen)
        return begun

    def _limit_time(self, draft: StepDraft) -> None:
        """With a latency target, prompts get the time that the decodes of this step leave."""
        target_ms = self._config.target_itl_ms
        if target_ms is None or not draft.chosen:
            return
        target = target_ms / 1000
        # Two mean deviations of margin, so that the target holds for the slow steps too.
        aimed_at = max(target - 2 * self._cost.deviation, target / 2)
        attended = sum(state.num_tokens for state in draft.chosen)
        draft.budget.model = self._cost
        draft.budget.seconds = aimed_at - self._cost.predict(len(draft.chosen), attended)
        draft.budget.least = self._page_size

    def _continue_prompt(self, state: RequestState, draft: StepDraft) -> None:
        start = state.num_computed
        count = draft.budget.chunk(start, state.num_tokens - start)
        if count <= 0:
            return
        if start + count > state.capacity:
            room = state.capacity + self._lives.cache.num_available * self._page_size - start
            if room > 0:
                # A shorter chunk is better than taking somebody's pages.
                count = min(count, room)
            elif state is not self._lives.running[0]:
                return
            if not self._grow(state, start + count, draft):
                return
        draft.choose_prompt(state, count)

    def _grow(self, state: RequestState, num_tokens: int, draft: StepDraft) -> bool:
        """Let the lease cover `num_tokens`, if need be at the cost of the last in standing.

        False when that is `state` itself, and when a plan in flight stands in the way.
        """
        lives = self._lives
        assert state.lease is not None
        while not lives.cache.reserve(state.lease, num_tokens):
            if draft.is_ahead:
                draft.is_blocked = True
                return False
            if len(lives.running) == 1:
                draft.stuck.append(state)
                return False
            victim = lives.running[-1]
            lives.preempt(victim, draft)
            if victim is state:
                return False
        lives.covered(state)
        return True
