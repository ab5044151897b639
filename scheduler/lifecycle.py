"""Every change of a request's station, and of the pages it holds, happens here."""

import sys
from bisect import bisect_left, insort

import numpy as np

from trunkline.radix.hashing import page_hashes
from trunkline.radix.lease import Lease
from trunkline.radix.prefix_cache import PrefixCache

from .config import SchedulerConfig
from .cost import CopyRates
from .draft import StepDraft
from .fair_share import ServedTokens
from .forecast import Demand, GrowthForecast, OutputLengths, pages_for
from .in_flight import InFlight
from .match_index import MatchIndex
from .preemption import HostSpace
from .queue import WaitingQueue
from .request import Request, Status
from .state import RequestState
from .stats import SchedulerStats

# Waiting requests whose place is brought up to date in one step, per cause (woken; match length changed).
UPDATES_PER_STEP = 64


def standing(state: RequestState) -> tuple[int, int]:
    """Order among the running: higher classes first, then who came first. The last one is the next victim."""
    return (-state.request.priority, state.seq)


class Lifecycle:
    """The stations WAITING (queued or parked), RUNNING, PREEMPTED, FINISHED, and the moves between them.

    Owns the waiting queue, the list of running requests, and the indexes that describe them.
    """

    def __init__(self, cache: PrefixCache, config: SchedulerConfig, stats: SchedulerStats) -> None:
        self.cache = cache
        self.config = config
        self.stats = stats
        self.page_size = cache.page_size
        self.rates = CopyRates()
        self.lengths = OutputLengths()
        self.served = ServedTokens()
        self.index = MatchIndex()
        self.in_flight = InFlight(config.in_flight_patience)
        self.queue = WaitingQueue(config, cache.page_size, self.served)
        self.host = HostSpace(config.preemption_mode, config.num_host_pages, cache.page_size, self.rates)
        self.running: list[RequestState] = []
        self.num_preempted = 0
        # What the running requests could still ask for at most, in pages.
        self.promised_pages = 0
        self._num_added = 0
        if config.enable_prefix_caching:
            cache.subscribe(self.index)

    def new(self, request: Request, step: int) -> RequestState:
        """A request enters and waits. O(len(prompt)) for the hashes of its pages and the first match."""
        hashes: tuple[int, ...] = ()
        matched = 0
        if self.config.enable_prefix_caching:
            hashes = tuple(page_hashes(request.prompt, self.page_size, request.namespace).tolist())
            matched = len(self.cache.match(request.prompt, request.namespace).pages)
        self._num_added += 1
        state = RequestState(request, self._num_added, step, hashes)
        self.served.enter(request.namespace)
        self._track_and_queue(state, matched)
        return state

    def refresh(self, step: int) -> None:
        """Bring the queue up to date with what the last step stored, evicted and ended; bounded work."""
        for state in self.in_flight.wake(step, UPDATES_PER_STEP):
            self._track_and_queue(state, 0)
        before = self.index.num_updates
        for state in self.index.settle(UPDATES_PER_STEP):
            self.queue.rescore(state)
        self.stats.match_updates += self.index.num_updates - before

    def park(self, state: RequestState, owner: RequestState, num_pages: int) -> None:
        """A queued request waits for pages that `owner` is computing."""
        self._leave_queue(state)
        self.in_flight.park(state, owner, num_pages)
        self.stats.num_parkings += 1

    def start(self, state: RequestState, lease: Lease, start: int, num_shared: int, draft: StepDraft) -> None:
        """A queued request runs: `num_shared` pages of its lease are shared, `start` tokens computed."""
        self.queue.serving(state, draft.step)
        self._leave_queue(state)
        self._drop_host_pages(state)
        self._count_admission(state, start)
        self.num_preempted -= state.status is Status.PREEMPTED
        state.move(Status.RUNNING)
        state.lease = lease
        state.most_pages = pages_for(state.most_tokens - 1, self.page_size)
        self.promised_pages += state.most_pages
        self.covered(state)
        state.num_computed = state.num_landed = start
        state.num_shared_pages = num_shared
        state.progress_step = draft.step
        state.overtaken = 0
        self._plan_next_commit(state)
        insort(self.running, state, key=standing)
        draft.admitted.append(state)
        if self.config.enable_prefix_caching and start < state.num_prompt:
            self.in_flight.register(state, start // self.page_size)

    def covered(self, state: RequestState) -> None:
        """The lease of a running request has grown."""
        assert state.lease is not None
        num_pages = len(state.lease.pages)
        self.promised_pages -= num_pages - state.capacity // self.page_size
        state.capacity = num_pages * self.page_size

    def commit(self, state: RequestState) -> None:
        """Put what has landed into the tree: whole pages, and the tail once the prompt is complete."""
        assert state.lease is not None
        end = state.num_landed
        if state.lease.num_committed >= state.num_prompt or end < state.num_prompt:
            end -= end % self.page_size
        self._commit_up_to(state, end)
        self._plan_next_commit(state)
        if state.in_flight_from < len(state.page_hashes):
            self.in_flight.landed(state, end // self.page_size)

    def preempt(self, state: RequestState, draft: StepDraft) -> None:
        """A running request gives up its pages; what is computed stays cached or goes to the host.

        Never while a plan is in flight.
        """
        draft.drop(state)
        draft.preempted.append(state)
        self._commit_up_to(state, state.num_landed)
        pairs = self.host.swap_out(state)
        if pairs is not None:
            draft.swap_out.append(pairs)
            self.stats.num_swapped_out += 1
        state.max_computed = max(state.max_computed, state.num_computed)
        self._stop_running(state)
        state.num_computed = state.num_landed = 0
        state.num_preemptions += 1
        self.stats.num_preemptions += 1
        state.move(Status.PREEMPTED)
        self.num_preempted += 1
        self.queue.add(state)

    def end(self, state: RequestState, keep: bool = True) -> None:
        """A request is over, wherever it is, and in no plan in flight; `keep` puts what has landed into the cache."""
        if state.status is Status.RUNNING:
            if keep:
                self._commit_up_to(state, state.num_landed)
            self._stop_running(state)
        elif not self.in_flight.unpark(state):
            self._leave_queue(state)
        self._drop_host_pages(state)
        self.num_preempted -= state.status is Status.PREEMPTED
        state.move(Status.FINISHED)
        self.served.leave(state.request.namespace)

    def demand(self, state: RequestState, num_shared: int) -> Demand:
        """What a waiting request wants of the pool when `num_shared` of its pages are there."""
        new_pages = pages_for(state.num_tokens, self.page_size) - num_shared
        generated, most = np.array([state.num_output]), np.array([state.request.max_new_tokens])
        expected = int(self.lengths.expected_remaining(generated, most)[0])
        return Demand(new_pages, expected / self.page_size, new_pages)

    def forecast(self, running: list[RequestState]) -> GrowthForecast:
        """What running requests will still want of the pool. O(n), vectorised."""
        size = self.page_size
        known = np.array([state.num_tokens for state in running], dtype=np.int64)
        prompts = np.array([state.num_prompt for state in running], dtype=np.int64)
        most = np.array([state.request.max_new_tokens for state in running], dtype=np.int64)
        pages = np.array([state.capacity for state in running], dtype=np.int64) // size
        shared = np.array([state.num_shared_pages for state in running], dtype=np.int64)
        growth = self.lengths.expected_remaining(known - prompts, most) / size
        pending = np.maximum(-(-known // size) - pages, 0)
        return GrowthForecast(int(pending.sum()), growth.tolist(), (pages - shared + pending).tolist())

    def swap_in(self, state: RequestState, lease: Lease, num_shared: int, draft: StepDraft) -> None:
        """Pages of a resumed request behind its `num_shared` shared ones come back from host memory."""
        assert state.swapped is not None
        host, end = state.swapped.host_pages, pages_for(state.swapped.num_tokens, self.page_size)
        needed = host[num_shared - state.swapped.first :]
        draft.swap_in.append(np.stack([needed, lease.pages[num_shared:end]], axis=1))
        draft.returned_host_pages.append(host)
        swapped_tokens = state.swapped.num_tokens - num_shared * self.page_size
        self.stats.num_swapped_in_tokens += swapped_tokens
        self.stats.num_reread_tokens -= swapped_tokens
        state.swapped = None

    def _count_admission(self, state: RequestState, start: int) -> None:
        stats = self.stats
        stats.num_admitted += 1
        if state.was_admitted:
            stats.num_reread_tokens += start
            stats.num_recomputed_tokens += max(0, state.max_computed - start)
        else:
            state.was_admitted = True
            state.num_cached_tokens = start
            stats.num_prompt_tokens += state.num_prompt
            stats.num_cached_tokens += start

    def _drop_host_pages(self, state: RequestState) -> None:
        if state.swapped is not None:
            self.host.give_back(state.swapped.host_pages)
            state.swapped = None

    def _track_and_queue(self, state: RequestState, matched: int) -> None:
        if state.status is Status.WAITING and self.config.enable_prefix_caching:
            self.index.track(state, matched)
        self.queue.add(state)

    def _leave_queue(self, state: RequestState) -> None:
        self.queue.remove(state)
        self.index.untrack(state)

    def _commit_up_to(self, state: RequestState, end: int) -> None:
        assert state.lease is not None
        if self.config.enable_prefix_caching and end > state.lease.num_committed:
            self.cache.commit(state.lease, state.tokens(0, end))

    def _plan_next_commit(self, state: RequestState) -> None:
        assert state.lease is not None
        if not self.config.enable_prefix_caching:
            state.commit_at = sys.maxsize
            return
        committed = state.lease.num_committed
        state.commit_at = (committed // self.page_size + 1) * self.page_size
        if committed < state.num_prompt:
            state.commit_at = min(state.commit_at, state.num_prompt)

    def _stop_running(self, state: RequestState) -> None:
        assert state.lease is not None
        self.in_flight.withdraw(state)
        self.cache.release(state.lease)
        state.lease = None
        self.promised_pages -= state.most_pages - state.capacity // self.page_size
        state.capacity = 0
        del self.running[bisect_left(self.running, standing(state), key=standing)]
