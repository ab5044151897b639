"""The leaves that may be evicted, sorted; namespaces over their quota first."""

from sortedcontainers import SortedList

from .eviction import Rank
from .node import Node, Space


class Candidates:
    """Evictable leaves by (rank, node id), kept up to date; add, discard and first are O(log n).

    A namespace with a quota also has a list of its own, from which it is evicted while it is over the quota.
    """

    def __init__(self) -> None:
        self._order = SortedList()
        self._by_space: dict[Space, SortedList] = {}
        self._over: dict[Space, int] = {}

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

    def resize(self, space: Space, num_pages: int) -> None:
        """The tree holds so many pages more (or less) in a namespace."""
        space.num_pages += num_pages
        if space.max_pages is None:
            return
        if space.num_pages > space.max_pages:
            self._over[space] = space.num_pages - space.max_pages
        else:
            self._over.pop(space, None)

    def first(self) -> int:
        """Id of the leaf to evict next: of the namespace furthest over its quota, else the lowest of all."""
        order = self._order
        if self._over:
            over = [(excess, space) for space, excess in self._over.items() if space in self._by_space]
            if over:
                _, worst = max(over, key=lambda item: (item[0], item[1].namespace))
                order = self._by_space[worst]
        leaf_id: int = order[0][1]
        return leaf_id

    def entries(self) -> list[tuple[Rank, int]]:
        """All (rank, node id) in order."""
        return list(self._order)

    def own_entries(self, space: Space) -> list[tuple[Rank, int]]:
        """Those of one namespace with a quota, in order."""
        return list(self._by_space.get(space, ()))

    def excess(self, space: Space) -> int:
        """By how many pages a namespace is over its quota; 0 when it is not."""
        return self._over.get(space, 0)
