"""One computes, the others wait and share: prompt pages that running requests are about to compute."""

from collections import deque
from collections.abc import Iterator

from .errors import InvariantError
from .request import Status
from .state import RequestState

Group = dict[int, RequestState]


class InFlight:
    """Who computes which prompt page right now, and who waits for it.

    A running request owns the chain hashes of its prompt's pages that are neither cached nor owned by
    another. A waiting one whose next page is owned is parked at the last page in a row that it can get from
    that owner, and woken when the page has landed, or when the owner ends, is preempted, or has computed
    nothing for `patience` steps; in the last three cases it computes for itself, or waits for whoever began
    to before it. Each step wakes a bounded number, first parked first. Parking costs O(log pages), a landed
    page O(1).
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.owners: dict[int, RequestState] = {}
        self._parked: dict[int, Group] = {}
        self._awaited: dict[int, RequestState] = {}
        self._ready: deque[Group] = deque()
        self.num_parked = 0

    def register(self, owner: RequestState, num_pages: int) -> None:
        """`owner` is going to compute its prompt from page `num_pages` on."""
        owner.in_flight_from = num_pages
        owners = self.owners
        for page_hash in owner.page_hashes[num_pages:]:
            owners.setdefault(page_hash, owner)

    def landed(self, owner: RequestState, num_pages: int) -> None:
        """The first `num_pages` pages of the owner's prompt have landed; wake those who waited for them."""
        self._give_up(owner, min(num_pages, len(owner.page_hashes)))

    def withdraw(self, owner: RequestState) -> None:
        """The owner will not compute the rest (ended, preempted, stalled); wake all who wait for it."""
        self._give_up(owner, len(owner.page_hashes))

    def owner_of(self, state: RequestState, num_pages: int) -> RequestState | None:
        """Who is computing the page behind the first `num_pages` of a prompt, if anybody."""
        if num_pages >= len(state.page_hashes):
            return None
        return self.owners.get(state.page_hashes[num_pages])

    def park(self, state: RequestState, owner: RequestState, num_pages: int) -> None:
        """Let `state`, with `num_pages` cached, wait for the last page in a row that `owner` computes."""
        hashes = state.page_hashes
        low, high = num_pages, len(hashes) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.owners.get(hashes[middle]) is owner:
                low = middle
            else:
                high = middle - 1
        state.parked_group = self._parked.setdefault(hashes[low], {})
        state.parked_group[state.seq] = state
        self._awaited[owner.seq] = owner
        self.num_parked += 1

    def unpark(self, state: RequestState) -> bool:
        """Take a request out, wherever it waits here; False if it does not."""
        if state.parked_group is None:
            return False
        del state.parked_group[state.seq]
        state.parked_group = None
        self.num_parked -= 1
        return True

    def wake(self, step: int, limit: int) -> Iterator[RequestState]:
        """Requests that need not wait any longer, at most `limit`; stalled owners lose theirs first."""
        for owner in list(self._awaited.values()):
            if step - owner.progress_step > self.patience:
                self.withdraw(owner)
        while self._ready and limit > 0:
            group = self._ready[0]
            if not group:
                self._ready.popleft()
                continue
            state = next(iter(group.values()))
            self.unpark(state)
            limit -= 1
            yield state

    def waiting(self) -> Iterator[RequestState]:
        """Everybody who is parked or about to be woken."""
        for group in (*self._parked.values(), *self._ready):
            yield from group.values()

    def check(self) -> None:
        """Raise `InvariantError` where an owner does not run, or a page waited for has no owner."""
        for page_hash, owner in self.owners.items():
            if owner.status is not Status.RUNNING:
                raise InvariantError(
                    f"page {page_hash:#x} is in flight for {owner.id!r}, which is {owner.status}"
                )
        for page_hash, group in self._parked.items():
            if group and page_hash not in self.owners:
                waiting = [state.id for state in group.values()]
                raise InvariantError(f"{waiting} wait for page {page_hash:#x}, which nobody computes")
        if sum(1 for _ in self.waiting()) != self.num_parked:
            raise InvariantError(f"{self.num_parked} requests are counted as parked, a recount differs")

    def _give_up(self, owner: RequestState, end: int) -> None:
        for page_hash in owner.page_hashes[owner.in_flight_from : end]:
            if self.owners.get(page_hash) is owner:
                del self.owners[page_hash]
                group = self._parked.pop(page_hash, None)
                if group:
                    self._ready.append(group)
        owner.in_flight_from = max(owner.in_flight_from, end)
        if owner.in_flight_from == len(owner.page_hashes):
            self._awaited.pop(owner.seq, None)
