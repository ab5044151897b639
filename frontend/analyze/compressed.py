"""One cache of one size and policy, kept by chain instead of by block: what a curve of a policy is made of."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import cast

from trunkline.radix.eviction import EvictionPolicy, PageUsage, make_policy

from .chains import ROOT, Chains

_Entry = tuple[float, ...]  # a rank, then the chain


class _Tail:
    """What the policies look at, as a `PageUsage` of one page: the one at the end of a chain."""

    __slots__ = ("age", "created", "hits", "last_access", "num_pages", "priority")

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.hits = self.last_access = self.created = self.priority = (0,)
        self.age = (0.0,)


class CompressedCache:
    """Replays requests as `PrefixCache` would, with its own policy objects, block for block the same.

    Of each chain the first `length` blocks are there. What the policies know of a block changes only by
    prefixes: a request's use reaches from the root to where it ends. So it is kept at the ends of uses: at an
    end lie the hits of the requests that ended there and the time of the last; a block's hits are the sum, its
    time the latest, over all ends at or behind it. Eviction cuts the end of a chain, and what lay there moves
    to the new end. A request costs O(its pieces + chains cut) steps, however many blocks these are.
    """

    def __init__(self, chains: Chains, policy: str, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._chains = chains
        self._policy: EvictionPolicy = make_policy(policy)
        self._tail = _Tail(capacity)
        self._block_size = block_size
        self._now = -1
        self.lost_at = (
            -1
        )  # the request that evicted the first block which the last request missed; -1: none did
        count = len(chains.parent)
        self._length = [0] * count
        self._hanging: list[list[int]] = [
            [] for _ in range(count)
        ]  # places of the chains that are there, sorted
        self._ends: list[list[int]] = [[] for _ in range(count)]  # sorted; the last one is the length
        self._uses: list[list[_Use]] = [[] for _ in range(count)]  # of each end
        self._gone: list[list[tuple[int, int]]] = [
            [] for _ in range(count)
        ]  # (from place, evicted by request)
        self._entry: list[_Entry | None] = [None] * count  # of a chain whose end may be evicted
        self._order: list[_Entry] = []  # a heap; what is no longer in `_entry` is out of date
        self._locked = ROOT, 0

    def request(self, number: int, pieces: list[tuple[int, int]], num_lookups: int, priority: int) -> int:
        """Look up the first blocks of a path, make room for all of it, store it; the blocks that were found.

        Requests have rising numbers.
        """
        self.lost_at = -1
        if not pieces:
            return 0
        self._now = number
        last, places = pieces[-1]
        fitting = min(self._chains.depth[last] + places, self.capacity)
        found = self._match(pieces, num_lookups)
        missing = fitting - found - (self.capacity - self.used)
        if missing > 0:
            self._evict(missing)
        self._locked = ROOT, 0
        self._store(pieces, found, fitting, priority)
        return found

    def _match(self, pieces: list[tuple[int, int]], num_lookups: int) -> int:
        """How many leading blocks are there; nothing of them can be evicted until the path is stored."""
        found = 0
        for chain, places in pieces:
            there = self._length[chain]
            depth = self._chains.depth[chain]
            hit = min(there, places, num_lookups - depth)
            if hit > 0:
                self._locked = chain, hit
                found = depth + hit
            if hit < places:
                if found < num_lookups and self._gone[chain]:
                    self.lost_at = self._gone[chain][-1][1]
                break
        return found

    def _store(self, pieces: list[tuple[int, int]], found: int, fitting: int, priority: int) -> None:
        depths, length, now, age = self._chains.depth, self._length, self._now, self._policy.age
        above = ROOT
        for chain, places in pieces:
            depth, there = depths[chain], length[chain]
            if places > fitting - depth:
                places = fitting - depth
                if places <= 0:
                    break
            if there:
                use = self._use_at(chain, places) if places < there else self._uses[chain][-1]
                use.last, use.age = now, age
                if priority > use.priority:
                    use.priority = priority
                if found > depth:
                    hit = found - depth
                    if hit < there and hit < places:
                        use = self._use_at(chain, hit)
                    use.hits += 1
            if places > there:
                self._extend(chain, places, priority)
                if not there and above != ROOT and self._hanging[above][-1] == length[above]:
                    self._entry[above] = None
            if places >= there:
                self._relist(chain)
            above = chain

    def _extend(self, chain: int, places: int, priority: int) -> None:
        """Store a chain up to `places`."""
        there = self._length[chain]
        gone = self._gone[chain]
        while gone and gone[-1][0] < places:
            gone.pop()
        self._ends[chain].append(places)
        self._uses[chain].append(_Use(self._now, self._now, self._policy.age, priority))
        self._length[chain] = places
        self.used += places - there
        parent = self._chains.parent[chain]
        if not there and parent != ROOT:
            insort(self._hanging[parent], self._chains.attach[chain])

    def _use_at(self, chain: int, place: int) -> _Use:
        """What is known at `place`; a place inside a piece cuts it."""
        ends, uses = self._ends[chain], self._uses[chain]
        index = bisect_left(ends, place)
        if ends[index] == place:
            return uses[index]
        use = _Use(uses[index].created, -1, 0.0, _NO_PRIORITY)
        ends.insert(index, place)
        uses.insert(index, use)
        return use

    def _evict(self, missing: int) -> None:
        order, entry_of, length = self._order, self._entry, self._length
        locked_chain, locked_places = self._locked
        while missing > 0:
            entry = heappop(order)
            chain = int(entry[-1])
            if entry_of[chain] is not entry:
                continue
            entry_of[chain] = None
            hanging, ends, there = self._hanging[chain], self._ends[chain], length[chain]
            floor = hanging[-1] if hanging else 0
            if chain == locked_chain and locked_places > floor:
                floor = locked_places
            if there <= floor:
                continue
            if len(ends) > 1 and ends[-2] > floor:
                floor = ends[-2]
            cut = there - floor if there - floor < missing else missing
            self._policy.evicted(entry[:-1], cut)
            missing -= cut
            self.used -= cut
            self._cut(chain, there - cut)

    def _cut(self, chain: int, length: int) -> None:
        """Leave `length` blocks of a chain."""
        self._length[chain] = length
        gone = self._gone[chain]
        if gone and gone[-1][1] == self._now:
            gone.pop()
        gone.append((length, self._now))
        ends, uses = self._ends[chain], self._uses[chain]
        if length == 0:
            ends.clear()
            uses.clear()
            parent = self._chains.parent[chain]
            if parent != ROOT:
                hanging = self._hanging[parent]
                del hanging[bisect_left(hanging, self._chains.attach[chain])]
                if self._entry[parent] is None:
                    self._relist(parent)
            return
        if len(ends) > 1 and ends[-2] == length:
            ends.pop()
            uses[-2].absorb(uses.pop())
        else:
            ends[-1] = length
        self._relist(chain)

    def _relist(self, chain: int) -> None:
        """Enter a chain whose end may be evicted into the order, with its present rank."""
        length, hanging = self._length[chain], self._hanging[chain]
        if not length or (hanging and hanging[-1] == length) or self._locked == (chain, length):
            self._entry[chain] = None
            return
        use, tail = self._uses[chain][-1], self._tail
        tail.hits = (use.hits,)
        tail.last_access = (use.last,)
        tail.created = (use.created,)
        tail.age = (use.age,)
        tail.priority = (use.priority,)
        start = (self._chains.depth[chain] + length - 1) * self._block_size
        # Flat, since nested tuples compare at half the speed.
        entry = (*self._policy.rank(cast(PageUsage, tail), 0, start), float(chain))
        self._entry[chain] = entry
        heappush(self._order, entry)


_NO_PRIORITY = -(2**31)


class _Use:
    """What the requests that ended at one place did, and when the blocks before it were stored."""

    __slots__ = ("age", "created", "hits", "last", "priority")

    def __init__(self, created: int, last: int, age: float, priority: int) -> None:
        self.created = created
        self.hits = 0
        self.last = last
        self.age = age
        self.priority = priority

    def absorb(self, behind: _Use) -> None:
        """The blocks behind are gone: their uses end here now."""
        self.hits += behind.hits
        if behind.last > self.last:
            self.last, self.age = behind.last, behind.age
        self.priority = max(self.priority, behind.priority)
