"""The tree of a whole trace, path-compressed: chains of blocks such that every path is a few chain beginnings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .trace import Trace
from .types import Int32Array

ROOT = -1


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """A path from some block down to a leaf, following the busiest branch, is a chain; chains cover the tree.

    Chain c hangs below the first `attach[c]` blocks of chain `parent[c]` (ROOT: below a root), and its first
    block has `depth[c]` blocks above it. Block b is the `place_of_block[b]`-th of chain `chain_of_block[b]`.
    `pieces[r]` is the path of request r: (chain, how many of its first blocks), root first. A cache that holds
    whole prefixes is then one number for each chain. Paths have O(log requests) pieces (heavy-path
    decomposition, Sleator and Tarjan 1983).
    """

    parent: list[int]
    attach: list[int]
    depth: list[int]
    chain_of_block: Int32Array
    place_of_block: Int32Array
    pieces: list[list[tuple[int, int]]]


def build_chains(trace: Trace) -> Chains:
    """Decompose the tree of all paths. O(blocks) vectorised, and O(requests log requests)."""
    return _Builder(trace).build()


class _Builder:
    """A request's new blocks are a run; runs hang on runs. Runs are cut where others hang on, and relinked."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._base = np.append(trace.first_new_block(), trace.num_distinct_blocks)
        self._chain_of_block: Int32Array = np.zeros(trace.num_distinct_blocks, dtype=np.int32)
        self._place_of_block: Int32Array = np.zeros(trace.num_distinct_blocks, dtype=np.int32)
        self._parent: list[int] = []
        self._attach: list[int] = []
        self._depth: list[int] = []

    def build(self) -> Chains:
        hanging, weights = self._hang()
        heads: dict[int, tuple[int, int]] = {}  # run -> chain and place at which it goes on
        base = self._base.tolist()
        for run in range(len(self._trace)):
            if base[run + 1] > base[run]:
                self._lay(run, heads, hanging[run], weights)
        pieces = list(self._pieces())
        return Chains(
            self._parent, self._attach, self._depth, self._chain_of_block, self._place_of_block, pieces
        )

    def _hang(self) -> tuple[list[list[tuple[int, int]]], list[int]]:
        """For each run the runs that hang on it as (blocks of it above them, run), and the requests below each."""
        trace, base = self._trace, self._base
        new = np.diff(base)
        lengths = np.diff(trace.indptr)
        hanging: list[list[tuple[int, int]]] = [[] for _ in range(len(trace))]
        parents = [ROOT] * len(trace)
        inner = np.flatnonzero((new > 0) & (lengths > new))
        above = trace.blocks[trace.indptr[inner] + lengths[inner] - new[inner] - 1]
        owners = np.searchsorted(base, above, side="right") - 1
        places = above - base[owners] + 1
        for run, owner, place in zip(inner.tolist(), owners.tolist(), places.tolist(), strict=True):
            hanging[owner].append((place, run))
            parents[run] = owner
        weights = [1] * len(trace)
        for run in range(len(trace) - 1, -1, -1):
            if parents[run] != ROOT:
                weights[parents[run]] += weights[run]
        return hanging, weights

    def _lay(
        self,
        run: int,
        heads: dict[int, tuple[int, int]],
        hanging: list[tuple[int, int]],
        weights: list[int],
    ) -> None:
        """Put the blocks of a run into chains and say where the runs that hang on it begin."""
        first, length = int(self._base[run]), int(self._base[run + 1] - self._base[run])
        chain, place = heads.pop(run, (ROOT, 0))
        if chain == ROOT:
            chain = self._new_chain(ROOT, 0)
        rest = 1 + sum(weights[child] for _, child in hanging)  # requests that go on in this run
        done = 0
        hanging.sort()
        index = 0
        while index < len(hanging):
            cut = hanging[index][0]
            place = self._fill(first + done, cut - done, chain, place)
            done = cut
            here = []
            while index < len(hanging) and hanging[index][0] == cut:
                here.append(hanging[index][1])
                index += 1
            rest -= sum(weights[child] for child in here)
            heir = max(here, key=lambda child: weights[child])
            inherits = cut == length or weights[heir] > rest
            for child in here:
                is_heir = inherits and child == heir
                heads[child] = (chain, place) if is_heir else (self._new_chain(chain, place), 0)
            if inherits and cut < length:
                chain, place = self._new_chain(chain, place), 0
        self._fill(first + done, length - done, chain, place)

    def _fill(self, block: int, count: int, chain: int, place: int) -> int:
        self._chain_of_block[block : block + count] = chain
        self._place_of_block[block : block + count] = np.arange(place, place + count)
        return place + count

    def _new_chain(self, parent: int, attach: int) -> int:
        self._parent.append(parent)
        self._attach.append(attach)
        self._depth.append(0 if parent == ROOT else self._depth[parent] + attach)
        return len(self._parent) - 1

    def _pieces(self) -> Iterator[list[tuple[int, int]]]:
        blocks, indptr = self._trace.blocks, self._trace.indptr.tolist()
        for start, end in pairwise(indptr):
            path = blocks[start:end]
            if not len(path):
                yield []
                continue
            chains = self._chain_of_block[path]
            last = np.append(np.flatnonzero(chains[1:] != chains[:-1]), len(path) - 1)
            ends = self._place_of_block[path[last]] + 1
            yield list(zip(chains[last].tolist(), ends.tolist(), strict=True))
