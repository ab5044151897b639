"""Invariants of the whole room, recomputed from scratch."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from trunkline.radix.tokens import NO_PAGES

from .draft import StepDraft
from .errors import InvariantError
from .lifecycle import Lifecycle, standing
from .plan import SchedulePlan
from .request import Status
from .state import RequestState


def check_scheduler(
    lives: Lifecycle,
    states: Sequence[RequestState],
    in_flight: Sequence[tuple[SchedulePlan, StepDraft]],
    step: int,
) -> None:
    """Raise unless pages, stations, queue and indexes agree with each other and with the cache.

    `in_flight` are the plans that are not answered, and what is behind them.
    """
    lives.cache.check()
    in_plans = {state for _, draft in in_flight for state in draft.chosen}
    _check_stations(lives, [*states, *(state for state in in_plans if state.ending is not None)])
    _check_pages(lives)
    _check_progress(states, in_flight)
    returned = [pages for _, draft in in_flight for pages in draft.returned_host_pages]
    lives.host.check(states, returned)
    lives.queue.check(step)
    lives.index.check()
    lives.in_flight.check()
    _check_matches(lives)


def _check_stations(lives: Lifecycle, states: Sequence[RequestState]) -> None:
    running = [state for state in states if state.status is Status.RUNNING]
    if sorted(running, key=standing) != lives.running:
        raise InvariantError(
            f"{[s.id for s in lives.running]} are listed as running, {[s.id for s in running]} are"
        )
    parked = {state.seq for state in lives.in_flight.waiting()}
    for state in states:
        if state.status is Status.FINISHED:
            raise InvariantError(f"request {state.id!r} is finished and still listed")
        places = (state in lives.queue, state.seq in parked, state.status is Status.RUNNING)
        if sum(places) != 1:
            raise InvariantError(
                f"request {state.id!r} is {state.status.value}: (queued, parked, running) {places}"
            )
    if lives.num_preempted != sum(state.status is Status.PREEMPTED for state in states):
        raise InvariantError(f"{lives.num_preempted} requests are counted as preempted, a recount differs")
    if len(lives.queue) + len(parked) + len(running) != len(states):
        raise InvariantError("somebody waits who is not alive")


def _check_progress(
    states: Sequence[RequestState], in_flight: Sequence[tuple[SchedulePlan, StepDraft]]
) -> None:
    """Computed and sampled are what has landed and what the plans in flight bring."""
    computing: Counter[RequestState] = Counter()
    sampling: Counter[RequestState] = Counter()
    for plan, draft in in_flight:
        computing.update(draft.chosen)
        rows = zip(plan.scheduled, draft.chosen, strict=True)
        sampling.update(state for row, state in rows if row.samples)
    for state in states:
        if state.num_computed != state.num_landed + computing[state]:
            raise InvariantError(
                f"request {state.id!r}: {state.num_landed} tokens landed and {computing[state]} are in flight, "
                f"but {state.num_computed} are counted as computed"
            )
        if state.num_tokens != state.num_known + sampling[state]:
            raise InvariantError(
                f"request {state.id!r}: {state.num_known} tokens are known and {sampling[state]} in flight, "
                f"but {state.num_tokens} are counted"
            )
        if not 0 <= state.num_computed < state.num_tokens <= state.most_tokens:
            raise InvariantError(f"request {state.id!r}: {state.num_computed} of {state.num_tokens} computed")


def _check_pages(lives: Lifecycle) -> None:
    leases = [state.lease for state in lives.running if state.lease is not None]
    held = np.unique(np.concatenate([NO_PAGES, *(lease.held_pages for lease in leases)]))
    pool = lives.cache.pool
    if len(leases) != len(lives.running):
        raise InvariantError("a running request has no lease")
    if len(held) != pool.num_in_use:
        raise InvariantError(f"{pool.num_in_use} pages are in use, running requests hold {len(held)}")
    promised = sum(state.most_pages - state.capacity // lives.page_size for state in lives.running)
    if promised != lives.promised_pages:
        raise InvariantError(f"{lives.promised_pages} pages are promised, a recount gives {promised}")
    for state in lives.running:
        assert state.lease is not None
        pages = state.lease.pages
        if (
            len(pages) * lives.page_size < state.num_computed
            or state.capacity != len(pages) * lives.page_size
        ):
            raise InvariantError(f"request {state.id!r}: {len(pages)} pages for {state.num_computed} tokens")


def _check_matches(lives: Lifecycle) -> None:
    """What the index believes is what a fresh match finds, unless a change is still queued."""
    for state in lives.index.settled():
        request = state.request
        found = len(lives.cache.match(request.prompt, request.namespace).pages)
        whole = len(request.prompt) % lives.page_size == 0
        # A match leaves one token to compute, so it never takes the last page of a prompt of whole pages.
        believed = min(state.matched_pages, len(state.page_hashes) - whole)
        if found != believed:
            raise InvariantError(
                f"request {state.id!r} is believed to have {believed} pages cached, it has {found}"
            )
