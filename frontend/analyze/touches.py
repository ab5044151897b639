"""One pass over a trace: which blocks were used last by whom, and how far back that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .progress import Listener, Silent
from .trace import Trace
from .types import Int64Array

_REPORT_EVERY = 256


@dataclass(frozen=True, slots=True, eq=False)
class Touches:
    """The seen part of every path, cut where the last user changes; one row for each piece.

    Piece i: blocks `start[i]` .. `end[i]` (depths, root 0) of request `request[i]` were last used by request
    `before[i]`, and `distance[i]` other blocks were used more recently than the first of them. All int64.
    A shorter prefix is used at least as often as a longer one, so `before` never rises along a path and a
    path has few pieces: O(log requests), amortised (as the accesses of a link-cut tree).
    """

    request: Int64Array
    start: Int64Array
    end: Int64Array
    before: Int64Array
    distance: Int64Array

    def looked_up(self, trace: Trace) -> Touches:
        """Only what prompts looked up, without what was merely stored again."""
        end = np.minimum(self.end, trace.num_lookup_blocks[self.request])
        keep = end > self.start
        return Touches(
            self.request[keep], self.start[keep], end[keep], self.before[keep], self.distance[keep]
        )

    def hit_blocks(self, trace: Trace, capacity: int) -> Int64Array:
        """For each request the blocks found in an LRU cache of `capacity` blocks (of `looked_up` pieces)."""
        resident = np.clip(capacity - self.distance, 0, self.end - self.start)
        return np.bincount(self.request, weights=resident, minlength=len(trace)).astype(np.int64)


def touch(trace: Trace, progress: Listener | None = None) -> Touches:
    """Follow all requests once. O(blocks) vectorised, O(log requests) for each piece.

    A request uses its blocks deepest first, so that leaves leave an LRU cache before their roots: in front of
    a block are all blocks used by later requests, and those of its own path above it.
    """
    hear = (progress or Silent()).stage("following blocks", len(trace))
    last = np.full(trace.num_distinct_blocks, -1, dtype=np.int32)
    recency = _Recency(len(trace))
    blocks, indptr = trace.blocks, trace.indptr.tolist()
    rows: list[tuple[int, int, int, int, int]] = []
    for request in range(len(trace)):
        path = blocks[indptr[request] : indptr[request + 1]]
        if not len(path):
            continue
        users = last[path]
        cuts = np.flatnonzero(users[1:] != users[:-1])
        bounds = [0, *(cuts + 1).tolist(), len(path)]
        owners = users[bounds[:-1]].tolist()
        for start, end, before in zip(bounds, bounds[1:], owners, strict=False):
            if before < 0:
                break
            rows.append((request, start, end, before, recency.after(before)))
        for start, end, before in zip(bounds, bounds[1:], owners, strict=False):
            if before >= 0:
                recency.add(before, start - end)
        recency.add(request, len(path))
        last[path] = request
        if request % _REPORT_EVERY == 0:
            hear(request)
    table = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return Touches(*table)


class _Recency:
    """How many blocks were last used by each request: a Fenwick tree over requests."""

    def __init__(self, num_requests: int) -> None:
        self._size = num_requests
        self._sums = [0] * (num_requests + 1)
        self._total = 0

    def add(self, request: int, count: int) -> None:
        self._total += count
        index = request + 1
        sums, size = self._sums, self._size
        while index <= size:
            sums[index] += count
            index += index & -index

    def after(self, request: int) -> int:
        """Blocks last used by later requests. O(log requests)."""
        index, upto = request + 1, 0
        sums = self._sums
        while index:
            upto += sums[index]
            index &= index - 1
        return self._total - upto


@dataclass(frozen=True, slots=True, eq=False)
class LruCurve:
    """Hits of an LRU cache of every size: `blocks[c]` and `tokens[c]` for a cache of c blocks (int64).

    Exact, from stack distances (Mattson et al., 1970) on the tree of prefixes.
    """

    blocks: Int64Array
    tokens: Int64Array

    @property
    def largest(self) -> int:
        """The size in blocks beyond which nothing is gained."""
        return len(self.blocks) - 1

    def at(self, capacity: int) -> tuple[int, int]:
        """Blocks and tokens hit with `capacity` blocks."""
        index = min(max(capacity, 0), self.largest)
        return int(self.blocks[index]), int(self.tokens[index])


def lru_curve(trace: Trace, touches: Touches) -> LruCurve:
    """The curve from the pieces of one pass. O(pieces + distinct blocks)."""
    found = touches.looked_up(trace)
    size = trace.num_distinct_blocks
    steps = np.zeros(size + 2, dtype=np.int64)
    np.add.at(steps, found.distance + 1, 1)
    np.add.at(steps, found.distance + 1 + found.end - found.start, -1)
    hits = np.cumsum(np.cumsum(steps))[: size + 1]
    # A prompt's last block may be partly full: its missing tokens are no hits.
    missing = found.end * trace.block_size - trace.num_tokens[found.request]
    short = missing > 0
    last_distance = (found.distance + found.end - found.start)[short]
    lacking = np.bincount(last_distance, weights=missing[short], minlength=size + 2)[: size + 1]
    tokens = hits * trace.block_size - np.cumsum(lacking).astype(np.int64)
    largest = int((found.distance + found.end - found.start).max()) if len(found.end) else 0
    return LruCurve(hits[: largest + 1], tokens[: largest + 1])
