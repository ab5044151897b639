"""Hits of bounded caches, block by block, in the plainest way."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import combinations

Path = Sequence[int]


def leading(path: Path, cached: set[int] | OrderedDict[int, None]) -> int:
    """How many leading blocks are cached."""
    return next((depth for depth, block in enumerate(path) if block not in cached), len(path))


def lru_hits(paths: Sequence[Path], lookups: Sequence[int], capacity: int) -> list[int]:
    """Each request uses its blocks deepest first."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for path, count in zip(paths, lookups, strict=True):
        hits.append(leading(path[:count], cache))
        for block in reversed(path):
            cache.pop(block, None)
            cache[block] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


def best_hits(paths: Sequence[Path], capacity: int) -> int:
    """The most hit blocks that any choice of kept blocks can have: all choices are tried."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for path in paths:
        following: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            found = hits + leading(path, set(cached))
            everything = cached | set(path)
            size = min(capacity, len(everything))
            for kept in map(frozenset, combinations(sorted(everything), size)):
                following[kept] = max(following.get(kept, 0), found)
        states = following
    return max(states.values())
