"""A bounded memory of what was evicted, to tell a miss of something lost from one of something new."""

from collections import OrderedDict
from dataclasses import dataclass

from .tokens import UInt64Array


@dataclass(frozen=True, slots=True)
class Ghost:
    """When a page left the tree (tick) and what made it leave (a policy's name, or "flush")."""

    tick: int
    policy: str


class Ghosts:
    """Chain hashes of the last `capacity` pages that left the tree and did not come back."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ghosts: OrderedDict[int, Ghost] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ghosts)

    def add(self, hashes: UInt64Array, tick: int, policy: str) -> None:
        """These pages have gone; the oldest ghosts make room. O(len(hashes))."""
        ghost = Ghost(tick, policy)
        for chain_hash in hashes[-self.capacity :].tolist():
            self._ghosts[chain_hash] = ghost
        while len(self._ghosts) > self.capacity:
            self._ghosts.popitem(last=False)

    def discard(self, hashes: UInt64Array) -> None:
        """These pages are in the tree again. O(len(hashes))."""
        if self._ghosts:
            for chain_hash in hashes.tolist():
                self._ghosts.pop(chain_hash, None)

    def get(self, chain_hash: int) -> Ghost | None:
        return self._ghosts.get(chain_hash)
