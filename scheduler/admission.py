"""Who comes in: slots, budget and memory for those who wait."""

from collections.abc import Iterator
from enum import Enum, auto

import numpy as np

from trunkline.radix.lease import PrefixMatch

from .config import SchedulerConfig
from .draft import StepDraft
from .forecast import GrowthForecast, pages_for
from .lifecycle import Lifecycle
from .request import Status
from .state import RequestState

# Waiting requests that are set aside in one step because what they need is being computed.
MAX_PARKED_PER_STEP = 64


class Verdict(Enum):
    """What became of a candidate."""

    ADMITTED = auto()
    PARKED = auto()
    MADE_ROOM = auto()
    NO_MEMORY = auto()
    TOO_MANY_PARTIAL = auto()
    STEP_IS_FULL = auto()


class Admission:
    """Admits waiting requests into a step, in the queue's order.

    One step looks at no more than the free slots + `max_skipped_candidates` + 64 parked ones + victims. A
    request that does not fit in memory is passed over; once `max_overtakes` others went before it, nobody
    does any more.
    """

    def __init__(self, lives: Lifecycle, config: SchedulerConfig) -> None:
        self._lives = lives
        self._config = config
        self._page_size = lives.page_size
        self._forecast: GrowthForecast | None = None
        self._batch_opened: int | None = None

    def admit(self, draft: StepDraft) -> None:
        """Add waiting requests to the draft while there is room."""
        is_static = self._config.batching == "static"
        if is_static and not self._batch_is_open(draft):
            return
        self._forecast = None
        passed_over: set[int] = set()
        no_memory: list[RequestState] = []
        num_parked = 0
        while draft.budget.tokens > 0 and num_parked < MAX_PARKED_PER_STEP:
            state = self._next_candidate(draft, passed_over)
            if state is None or not self._may_have_slot(state, draft):
                if state is not None or not self._lives.in_flight.num_parked:
                    self._batch_opened = None
                return
            self._lives.stats.candidates_examined += 1
            match self._consider(state, draft):
                case Verdict.ADMITTED:
                    for skipped in no_memory:
                        skipped.overtaken += 1
                    if any(skipped.overtaken >= self._config.max_overtakes for skipped in no_memory):
                        return
                case Verdict.PARKED:
                    num_parked += 1
                case Verdict.MADE_ROOM:
                    continue
                case Verdict.STEP_IS_FULL:
                    return
                case Verdict.TOO_MANY_PARTIAL:
                    passed_over.add(state.seq)
                case Verdict.NO_MEMORY:
                    self._batch_opened = None
                    if not self._lives.running:
                        draft.stuck.append(state)
                        return
                    if is_static or state.overtaken >= self._config.max_overtakes:
                        return
                    passed_over.add(state.seq)
                    no_memory.append(state)
            if len(passed_over) > self._config.max_skipped_candidates:
                return

    def _batch_is_open(self, draft: StepDraft) -> bool:
        """Static batching: those who waited when nobody ran are a batch; the others wait for its end."""
        if not self._lives.running:
            self._batch_opened = draft.step
        return self._batch_opened is not None

    def _next_candidate(self, draft: StepDraft, passed_over: set[int]) -> RequestState | None:
        for state in self._lives.queue.candidates(draft.step):
            if state.seq in passed_over or state in draft.preempted:
                continue
            if self._batch_opened is None or state.arrival_step < self._batch_opened:
                return state
        return None

    def _may_have_slot(self, state: RequestState, draft: StepDraft) -> bool:
        return self._has_slot(draft) or next(self._victims_for(state, draft), None) is not None

    def _has_slot(self, draft: StepDraft) -> bool:
        return len(self._lives.running) - draft.num_done < self._config.max_running

    def _victims_for(self, state: RequestState, draft: StepDraft) -> Iterator[RequestState]:
        """Running requests of a lower class that may have to go for a waiting one, last in standing first."""
        if not self._config.preempts_for_priority:
            return
        for victim in reversed(self._lives.running):
            if victim.request.priority >= state.request.priority:
                return
            if victim not in draft.admitted:
                yield victim

    def _consider(self, state: RequestState, draft: StepDraft) -> Verdict:
        known = state.matched_pages
        is_useful = state.status is Status.WAITING and (known + 1) * self._page_size <= state.reuse_limit
        # The usual case is clear without a match: a whole page that is of use is being computed.
        if is_useful and self._park(state, known, known * self._page_size):
            return Verdict.PARKED
        match = self._match(state, state.reuse_limit)
        if self._park(state, len(match.pages), match.num_tokens):
            return Verdict.PARKED
        verdict = self._admit_with(match, state, draft)
        if verdict is Verdict.NO_MEMORY and match.partial_page is not None:
            # Until it is copied, the page to copy from takes room too: try without it.
            match = self._match(state, len(match.pages) * self._page_size)
            verdict = self._admit_with(match, state, draft)
        return self._make_room(match, state, draft) if verdict is Verdict.NO_MEMORY else verdict

    def _park(self, state: RequestState, num_pages: int, num_cached: int) -> bool:
        """Let a candidate wait for the page behind its first `num_pages`, if somebody computes it.

        Not if it gains nothing over the `num_cached` tokens that it could read now.
        """
        owner = self._lives.in_flight.owner_of(state, num_pages)
        if owner is None or min((num_pages + 1) * self._page_size, state.reuse_limit) <= num_cached:
            return False
        self._lives.park(state, owner, num_pages)
        return True

    def _match(self, state: RequestState, limit: int) -> PrefixMatch:
        if not self._config.enable_prefix_caching:
            limit = 0
        return self._lives.cache.match(state.history, state.request.namespace, limit)

    def _admit_with(self, match: PrefixMatch, state: RequestState, draft: StepDraft) -> Verdict:
        """Start a candidate with what `match` found; the chunk is cut from what is not cached."""
        lives = self._lives
        start = match.num_tokens
        swapped = state.swapped
        from_host = swapped is not None and len(match.pages) >= swapped.first and swapped.num_tokens > start
        if from_host:
            if match.partial_page is not None:
                match = self._match(state, len(match.pages) * self._page_size)
            assert swapped is not None
            start = swapped.num_tokens
        remaining = state.num_tokens - start
        count = draft.budget.chunk(start, remaining)
        if count <= 0:
            return Verdict.STEP_IS_FULL
        if count < remaining and draft.num_partial >= self._config.max_num_partial_prefills:
            return Verdict.TOO_MANY_PARTIAL
        if not self._fits(match, state, start + count):
            return Verdict.NO_MEMORY
        if not self._has_slot(draft):
            return self._preempt(next(self._victims_for(state, draft)), draft)
        lease = lives.cache.acquire(match, state.request.priority)
        if not lives.cache.reserve(lease, start + count):
            lives.cache.release(lease)
            return Verdict.NO_MEMORY
        if from_host:
            lives.swap_in(state, lease, len(match.pages), draft)
        if lease.copy_from is not None:
            draft.page_copies.append((lease.copy_from, int(lease.pages[len(match.pages)])))
        lives.start(state, lease, start, len(match.pages), draft)
        draft.choose_prompt(state, count)
        if self._forecast is not None:
            reserved = len(lease.pages) - len(match.pages)
            demand = lives.demand(state, len(match.pages))
            self._forecast.add(demand._replace(pending=demand.pending - reserved))
        return Verdict.ADMITTED

    def _fits(self, match: PrefixMatch, state: RequestState, num_tokens: int) -> bool:
        """Whether there is memory: for the next chunk if nobody runs, else for all who run and this one."""
        lives = self._lives
        available = lives.cache.num_available - self._num_evictable(match)
        if not lives.running:
            return pages_for(num_tokens, self._page_size) - len(match.pages) <= available
        most = pages_for(state.most_tokens - 1, self._page_size)
        if most - len(match.pages) + lives.promised_pages <= available:
            # Even the longest outputs have room.
            return True
        if self._forecast is None:
            self._forecast = lives.forecast(lives.running)
        return self._forecast.fits(available, lives.demand(state, len(match.pages)))

    def _make_room(self, match: PrefixMatch, state: RequestState, draft: StepDraft) -> Verdict:
        """Preempt one request of a lower class, if preempting all of them lets the candidate in."""
        victims = list(self._victims_for(state, draft))
        if not victims:
            return Verdict.NO_MEMORY
        lives = self._lives
        others = [other for other in lives.running if other not in victims]
        freed = sum(victim.num_own_pages for victim in victims)
        available = lives.cache.num_available - self._num_evictable(match) + freed
        if not lives.forecast(others).fits(available, lives.demand(state, len(match.pages))):
            return Verdict.NO_MEMORY
        return self._preempt(victims[0], draft)

    def _preempt(self, victim: RequestState, draft: StepDraft) -> Verdict:
        """Take a running request's place; while a plan is in flight it is left to the next step to do so."""
        if draft.is_ahead:
            draft.is_blocked = True
            return Verdict.STEP_IS_FULL
        self._lives.preempt(victim, draft)
        self._forecast = None
        return Verdict.MADE_ROOM

    def _num_evictable(self, match: PrefixMatch) -> int:
        """Pages of a match that count as available now and will not once the match is acquired."""
        pool = self._lives.cache.pool
        pages = match.pages
        if match.partial_page is not None:
            pages = np.append(pages, np.int32(match.partial_page))
        return int(np.count_nonzero(pool.held[pages] & (pool.counts[pages] == 1)))
