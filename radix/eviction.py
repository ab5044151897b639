"""Which page goes first: what is known about each page, and the policies that rank it."""

from typing import Protocol

import numpy as np

from trunkline.errors import ConfigError

from .tokens import Int32Array, as_index

Rank = tuple[float, ...]


class PageUsage:
    """What the policies know, one entry for each page of the pool (arrays of num_pages + 1).

    `last_access` and `created` are logical ticks, `hits` counts the requests that reused the page, `priority`
    is the highest of its requests, `age` is the policy's own clock at the last access, `retired` pages go
    before all others until somebody uses them again. It is kept by page and not by node, so a request that
    reuses the front of a node leaves the rank of the node's end as it was.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.last_access = np.zeros(num_pages + 1, dtype=np.int64)
        self.created = np.zeros(num_pages + 1, dtype=np.int64)
        self.hits: Int32Array = np.zeros(num_pages + 1, dtype=np.int32)
        self.priority: Int32Array = np.zeros(num_pages + 1, dtype=np.int32)
        self.age = np.zeros(num_pages + 1, dtype=np.float64)
        self.retired = np.zeros(num_pages + 1, dtype=np.bool_)

    def store(self, pages: Int32Array, tick: int, priority: int, age: float, replaced: int | None) -> None:
        """New pages enter the tree; the first keeps the past of a less full page that it replaces."""
        past = None
        if replaced is not None:
            past = int(self.created[replaced]), int(self.hits[replaced]), int(self.priority[replaced])
        index = as_index(pages)
        self.created[index] = tick
        self.last_access[index] = tick
        self.hits[index] = 0
        self.priority[index] = priority
        self.age[index] = age
        self.retired[index] = False
        if past is not None:
            first = pages[0]
            self.created[first], self.hits[first] = past[:2]
            self.priority[first] = max(priority, past[2])

    def hit(self, pages: Int32Array) -> None:
        """One more request reuses these pages."""
        self.hits[as_index(pages)] += 1

    def touch(self, pages: Int32Array, tick: int, priority: int, age: float) -> None:
        """A request used these pages until now."""
        index = as_index(pages)
        self.last_access[index] = tick
        self.age[index] = age
        self.priority[index] = np.maximum(self.priority[index], priority)
        self.retired[index] = False

    def num_alike_at_end(self, pages: Int32Array) -> int:
        """How many pages at the end of `pages` have the very same usage as the last one (at least 1)."""
        last = pages[-1]
        alike = self.last_access[pages] == self.last_access[last]
        alike &= self.hits[pages] == self.hits[last]
        alike &= self.created[pages] == self.created[last]
        alike &= self.priority[pages] == self.priority[last]
        alike &= self.retired[pages] == self.retired[last]
        return len(pages) if alike.all() else int(alike[::-1].argmin())


class EvictionPolicy(Protocol):
    """Ranks the last page of a leaf; the lowest rank is evicted first.

    A rank depends only on the page's usage and place, so it stays the same while nobody uses the page.
    """

    name: str
    age: float

    def rank(self, usage: PageUsage, page: int, start: int) -> Rank:
        """Rank of a page whose first token is the `start`-th of its sequence."""
        ...

    def evicted(self, rank: Rank, num_pages: int) -> None:
        """Pages of this rank were evicted to make room."""
        ...


class _Ageless:
    """A policy whose ranks need no clock of their own."""

    age = 0.0

    def evicted(self, rank: Rank, num_pages: int) -> None:
        """Nothing ages."""


class LeastRecentlyUsed(_Ageless):
    """The page that was used longest ago."""

    name = "lru"

    def rank(self, usage: PageUsage, page: int, start: int) -> Rank:
        return (float(usage.last_access[page]),)


class LeastFrequentlyUsed(_Ageless):
    """The page reused by the fewest requests, among equals the one used longest ago."""

    name = "lfu"

    def rank(self, usage: PageUsage, page: int, start: int) -> Rank:
        return (float(usage.hits[page]), float(usage.last_access[page]))


class FirstInFirstOut(_Ageless):
    """The page that was stored longest ago."""

    name = "fifo"

    def rank(self, usage: PageUsage, page: int, start: int) -> Rank:
        return (float(usage.created[page]),)


class Priority(_Ageless):
    """The page whose highest request has the lowest priority, among equals the one used longest ago."""

    name = "priority"

    def rank(self, usage: PageUsage, page: int, start: int) -> Rank:
        return (float(usage.priority[page]), float(usage.last_access[page]))


class SegmentedLru:
    """Pages that were never reused before those that were; in each segment the one used longest ago.

    The protected segment is bounded by time and not by a second list, so that ranks never change: the clock
    counts evicted pages, and a reused page is protected until PROTECTED_SHARE of a pool was evicted since its
    last use; from then on it competes with unused pages that came later.
    """

    name = "slru"
    PROTECTED_SHARE = 0.8

    def __init__(self) -> None:
        self.age = 0.0

    def rank(self, usage: PageUsage, page: int, start: int) -> Rank:
        head_start = self.PROTECTED_SHARE * usage.num_pages if usage.hits[page] else 0.0
        return (float(usage.age[page]) + head_start, float(usage.last_access[page]))

    def evicted(self, rank: Rank, num_pages: int) -> None:
        self.age += num_pages


class GreedyDualSizeFrequency:
    """Cost-aware: the page that is cheapest to compute again for each time it is wanted, with aging.

    rank = age + (1 + hits) * cost, where computing a token again costs one unit for its linear layers and
    start / ATTENTION_PARITY for its attention to all before it. The age is the rank of the page evicted last,
    so a page that was dear once does not stay for ever (GreedyDual-Size-Frequency, Cherkasova 1998).
    """

    name = "gdsf"
    # Context at which a token's attention costs as much as its linear layers, for 7B: 32 layers of 4096.
    ATTENTION_PARITY = 26_000

    def __init__(self) -> None:
        self.age = 0.0

    def rank(self, usage: PageUsage, page: int, start: int) -> Rank:
        cost = 1.0 + start / self.ATTENTION_PARITY
        return (float(usage.age[page]) + (1 + int(usage.hits[page])) * cost, float(usage.last_access[page]))

    def evicted(self, rank: Rank, num_pages: int) -> None:
        self.age = max(self.age, rank[0])


POLICIES: dict[str, type[EvictionPolicy]] = {
    policy.name: policy
    for policy in (
        LeastRecentlyUsed,
        LeastFrequentlyUsed,
        SegmentedLru,
        FirstInFirstOut,
        Priority,
        GreedyDualSizeFrequency,
    )
}


def make_policy(name: str) -> EvictionPolicy:
    """A new policy by its name; raises ConfigError for an unknown one."""
    if name not in POLICIES:
        raise ConfigError(f"eviction_policy {name!r} is not one of {', '.join(POLICIES)}")
    return POLICIES[name]()
