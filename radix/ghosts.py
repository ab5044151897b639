"""A bounded memory of what was evicted, to tell a miss of something lost from one of something new."""

from collections import OrderedDict, deque
from dataclasses import dataclass

from .tokens import UInt64Array


@dataclass(frozen=True, slots=True)
class Ghost:
    """When a page left the tree (tick) and what made it leave (a policy's name, or "flush")."""

    tick: int
    policy: str


class Ghosts:
    """Chain hashes of the last `capacity` pages that left the tree; for one that left twice, the last time.

    Leaving costs O(1) for a whole run of pages: runs are only put into the index when somebody asks. A page
    that came back stays in, but nobody asks for a page that is in the tree.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._index: OrderedDict[int, Ghost] = OrderedDict()
        self._unindexed: deque[tuple[UInt64Array, Ghost]] = deque()
        self._num_unindexed = 0

    def add(self, hashes: UInt64Array, tick: int, policy: str) -> None:
        """These pages have gone."""
        self._unindexed.append((hashes, Ghost(tick, policy)))
        self._num_unindexed += len(hashes)
        while self._num_unindexed - len(self._unindexed[0][0]) >= self.capacity:
            self._num_unindexed -= len(self._unindexed.popleft()[0])

    def get(self, chain_hash: int) -> Ghost | None:
        """What is remembered of a page; O(pages that have gone since the last question)."""
        while self._unindexed:
            hashes, ghost = self._unindexed.popleft()
            for gone in hashes.tolist():
                self._index[gone] = ghost
                self._index.move_to_end(gone)
        self._num_unindexed = 0
        while len(self._index) > self.capacity:
            self._index.popitem(last=False)
        return self._index.get(chain_hash)
