"""How much of each waiting prompt is cached, kept up to date by the cache's events."""

from collections import deque
from collections.abc import Iterator

from trunkline.radix.tokens import UInt64Array

from .errors import InvariantError
from .state import RequestState

Group = dict[int, RequestState]


class MatchIndex:
    """Cached whole pages of every waiting request; a change of the tree touches only those it concerns.

    Waiters are not registered at tree nodes, which splits would move under them, but under chain hashes,
    which name a prefix for ever: `_next[hash of the first page that is not cached]` and `_end[hash of the
    last page that is]`. A stored page moves its `_next` group, an evicted one its `_end` group, to a queue
    in O(1) whatever their size; `settle` then brings a bounded number of waiters up to date. Between the
    two a waiter's length may be stale: lengths only order the queue, a request is matched afresh when it is
    admitted.
    """

    def __init__(self) -> None:
        self._cached: set[int] = set()
        self._next: dict[int, Group] = {}
        self._end: dict[int, Group] = {}
        self._changed: deque[Group] = deque()
        self._tracked: Group = {}
        self.num_updates = 0

    def __len__(self) -> int:
        return len(self._tracked)

    def stored(self, hashes: UInt64Array) -> None:
        """The cache now has these whole pages."""
        for page_hash in hashes.tolist():
            self._cached.add(page_hash)
            group = self._next.pop(page_hash, None)
            if group:
                self._changed.append(group)

    def evicted(self, hashes: UInt64Array) -> None:
        """The cache no longer has these whole pages."""
        for page_hash in hashes.tolist():
            self._cached.discard(page_hash)
            group = self._end.pop(page_hash, None)
            if group:
                self._changed.append(group)

    def track(self, state: RequestState, num_pages: int) -> None:
        """Follow a waiting request of which at least `num_pages` whole pages are cached. O(num_pages)."""
        self._cached.update(state.page_hashes[:num_pages])
        state.matched_pages = self._cached_pages(state)
        self._tracked[state.seq] = state
        self._register(state)

    def untrack(self, state: RequestState) -> None:
        """Forget a request; nothing happens if it is not followed. O(1)."""
        if self._tracked.pop(state.seq, None) is not None:
            self._unregister(state)

    def settle(self, limit: int) -> Iterator[RequestState]:
        """Bring up to `limit` waiters that events concerned up to date; yields those whose length changed."""
        while self._changed and limit > 0:
            group = self._changed[0]
            if not group:
                self._changed.popleft()
                continue
            state = next(iter(group.values()))
            limit -= 1
            self.num_updates += 1
            self._unregister(state)
            before = state.matched_pages
            state.matched_pages = self._cached_pages(state)
            self._register(state)
            if state.matched_pages != before:
                yield state

    def settled(self) -> Iterator[RequestState]:
        """The followed requests that no change waits for."""
        pending = {seq for group in self._changed for seq in group}
        return (state for seq, state in self._tracked.items() if seq not in pending)

    def check(self) -> None:
        """Raise `InvariantError` unless settled lengths equal a recount and only the followed are listed."""
        for state in self.settled():
            count = 0
            while count < len(state.page_hashes) and state.page_hashes[count] in self._cached:
                count += 1
            if count != state.matched_pages:
                raise InvariantError(
                    f"request {state.id!r} has {count} pages cached, not {state.matched_pages}"
                )
        for groups in (self._next, self._end):
            for group in groups.values():
                if not group or any(self._tracked.get(seq) is not state for seq, state in group.items()):
                    raise InvariantError(f"the match index lists requests that do not wait: {list(group)}")

    def _cached_pages(self, state: RequestState) -> int:
        # The cache holds prefixes, so along one prompt "cached" is true up to some page and false behind it.
        hashes, cached = state.page_hashes, self._cached
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in cached:
                low = middle + 1
            else:
                high = middle
        return low

    def _register(self, state: RequestState) -> None:
        pages, hashes = state.matched_pages, state.page_hashes
        if pages < len(hashes):
            state.next_group = self._next.setdefault(hashes[pages], {})
            state.next_group[state.seq] = state
        if pages:
            state.end_group = self._end.setdefault(hashes[pages - 1], {})
            state.end_group[state.seq] = state

    def _unregister(self, state: RequestState) -> None:
        pages, hashes = state.matched_pages, state.page_hashes
        if state.next_group is not None:
            del state.next_group[state.seq]
            if not state.next_group and self._next.get(hashes[pages]) is state.next_group:
                del self._next[hashes[pages]]
            state.next_group = None
        if state.end_group is not None:
            del state.end_group[state.seq]
            if not state.end_group and self._end.get(hashes[pages - 1]) is state.end_group:
                del self._end[hashes[pages - 1]]
            state.end_group = None
