"""The best that any eviction order could do: Belady's rule on the tree of prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from .touches import Touches
from .trace import Trace
from .types import Int64Array


def optimum_hits(trace: Trace, touches: Touches, capacities: Sequence[int]) -> list[Int64Array]:
    """For each capacity (in blocks) the hit blocks of each request under the optimal policy.

    The blocks whose next use is furthest away go first, and new ones need not be kept at all (Belady, 1966).
    A prefix is used no later than what follows it, so the rule never keeps a block without its prefix: the
    bound is one that a tree can reach. It is known how many blocks wait for each request, not which ones:
    O((pieces + requests) log requests) for a capacity, whatever the number of blocks.
    """
    return [_hits(len(trace), _next_uses(trace, touches), capacity) for capacity in capacities]


def _next_uses(trace: Trace, touches: Touches) -> list[list[tuple[int, int]]]:
    """For each request: (later request, number of blocks) for what of its path is looked up again, and by whom."""
    found = touches.looked_up(trace)
    uses: list[list[tuple[int, int]]] = [[] for _ in range(len(trace))]
    pieces = zip(
        found.before.tolist(), found.request.tolist(), (found.end - found.start).tolist(), strict=True
    )
    for before, request, length in pieces:
        uses[before].append((request, length))
    return uses


def _hits(num_requests: int, uses: list[list[tuple[int, int]]], capacity: int) -> Int64Array:
    waiting = [0] * num_requests  # blocks in the cache, by the request that looks them up next
    furthest: list[int] = []
    kept = 0
    hits = np.zeros(num_requests, dtype=np.int64)
    for request in range(num_requests):
        found = waiting[request]
        hits[request] = found
        kept -= found
        waiting[request] = 0
        for later, length in uses[request]:
            if not waiting[later]:
                heappush(furthest, -later)
            waiting[later] += length
            kept += length
        while kept > capacity:
            later = -furthest[0]
            excess = min(kept - capacity, waiting[later])
            waiting[later] -= excess
            kept -= excess
            if not waiting[later]:
                heappop(furthest)
    return hits
