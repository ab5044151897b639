"""The leaves that may be evicted, sorted; namespaces over their quota first."""

from sortedcontainers import SortedList

from .eviction import Rank
from .node import Node, Space


class Candidates:
    """Evictable leaves by (rank, node id), kept up to date; add, remove and first are O(log n).

    A namespace with a quota also has a list of its own, so that its leaves can be found while it is over the quota.
    """

    def __init__(self) -> None:
        self._order = SortedList()
        self._by_space: dict[Space, SortedList] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, leaf: Node, rank: Rank) -> None:
        """Enter a leaf that is not in."""
        entry = (rank, leaf.id)
        leaf.entry = entry
        self._order.add(entry)
        if leaf.space.max_pages is not None:
            self._by_space.setdefault(leaf.space, SortedList()).add(entry)

    def discard(self, leaf: Node) -> None:
        """Take a leaf out if it is in."""
        if leaf.entry is None:
            return
        self._order.remove(leaf.entry)
        if leaf.space.max_pages is not None:
            own = self._by_space[leaf.space]
            own.remove(leaf.entry)
            if not own:
                del self._by_space[leaf.space]
        leaf.entry = None

    def first(self) -> int:
        """Id of the leaf to evict next: of the namespace furthest over its quota, else the lowest of all."""
        over = [
            (space.num_pages - space.max_pages, space.namespace, own)
            for space, own in self._by_space.items()
            if space.max_pages is not None and space.num_pages > space.max_pages
        ]
        order = max(over, key=lambda item: item[:2])[2] if over else self._order
        leaf_id: int = order[0][1]
        return leaf_id

    def entries(self) -> list[tuple[Rank, int]]:
        """All (rank, node id) in order, for checks."""
        return list(self._order)
