"""Block names of any kind → numbers of prefixes, exactly, and without a loop over the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .types import Int32Array, Int64Array, UInt64Array

# Below this many times the number of blocks, names are used as indices instead of being sorted.
_DENSE_FACTOR = 4


def number_blocks(names: NDArray[Any], indptr: Int64Array, root_of: Int32Array) -> tuple[Int32Array, int]:
    """Number prefixes 0, 1, 2, ... in the order of their first appearance.

    `names` (integers) are the blocks of all requests one after the other, `root_of[r]` is the namespace of
    request r. Two blocks get the same number when their whole paths from the root are equal: usually names are
    chained already and that is only checked; where they are not, paths are hashed and the hashes are checked.
    Returns the numbers (int32) and how many there are. O(blocks log blocks), O(blocks) for small names.
    """
    codes, num_codes = _dense(names)
    before = _predecessors(codes, indptr, root_of)
    if not _is_function(codes, before, num_codes):
        codes, num_codes = _number_paths(codes, indptr, root_of)
    return _by_first_appearance(codes, num_codes)


def prefix_hashes(values: NDArray[Any], indptr: Int64Array, root_of: Int32Array, seed: int) -> UInt64Array:
    """For each element a hash of its sequence up to and including it: sums of mixed (value, position) pairs."""
    lengths = np.diff(indptr)
    position = np.arange(len(values), dtype=np.uint64) - np.repeat(indptr[:-1], lengths).astype(np.uint64)
    mixed = _mix(_mix(values.astype(np.uint64) + np.uint64(seed)) + position)
    sums = np.cumsum(mixed, dtype=np.uint64)
    before = np.zeros(len(lengths), dtype=np.uint64)
    starts = indptr[:-1]
    before[starts > 0] = sums[starts[starts > 0] - 1]
    root = _mix(root_of.astype(np.uint64) + np.uint64(seed) + np.uint64(0x5851F42D4C957F2D))
    hashes: UInt64Array = sums - np.repeat(before - root, lengths)
    return hashes


def _dense(names: NDArray[Any]) -> tuple[Int32Array, int]:
    if not len(names):
        return np.zeros(0, np.int32), 0
    low, high = int(names.min()), int(names.max())
    if low >= 0 and high < _DENSE_FACTOR * len(names) + 1024:
        return names.astype(np.int32), high + 1
    distinct, codes = np.unique(names, return_inverse=True)
    return codes.astype(np.int32), len(distinct)


def _predecessors(codes: Int32Array, indptr: Int64Array, root_of: Int32Array) -> Int32Array:
    """The block before each block; a root, as a negative number, before the first ones."""
    before = np.empty_like(codes)
    before[1:] = codes[:-1]
    starts = indptr[:-1][np.diff(indptr) > 0]
    before[starts] = -1 - root_of[np.diff(indptr) > 0]
    return before


def _is_function(keys: Int32Array, values: Int32Array, num_keys: int) -> bool:
    """Whether equal keys always have equal values."""
    known = np.zeros(num_keys, dtype=np.int32)
    known[keys] = values
    return bool(np.array_equal(known[keys], values))


def _number_paths(codes: Int32Array, indptr: Int64Array, root_of: Int32Array) -> tuple[Int32Array, int]:
    """Numbers of whole paths. A collision would show as a number with two last blocks or two predecessors."""
    seed = 1
    while True:
        distinct, numbers = np.unique(prefix_hashes(codes, indptr, root_of, seed), return_inverse=True)
        paths = numbers.astype(np.int32)
        before = _predecessors(paths, indptr, root_of)
        if _is_function(paths, codes, len(distinct)) and _is_function(paths, before, len(distinct)):
            return paths, len(distinct)
        seed += 1


def _by_first_appearance(codes: Int32Array, num_codes: int) -> tuple[Int32Array, int]:
    first = np.full(num_codes, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.flatnonzero(first >= 0)
    order = used[np.argsort(first[used])]
    number = np.zeros(num_codes, dtype=np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    return number[codes], len(order)


def _mix(values: UInt64Array) -> UInt64Array:
    """splitmix64's finaliser."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: UInt64Array = mixed ^ (mixed >> np.uint64(31))
    return result
