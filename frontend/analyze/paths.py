"""What can be read off numbered prefixes without following requests one by one.

Prefixes (of blocks or of tokens) are numbered in the order of their first appearance, so the new ones of a
request are a run of successive numbers at the end of its path.
"""

from __future__ import annotations

import numpy as np

from .types import Int32Array, Int64Array


def first_new(numbers: Int32Array, indptr: Int64Array) -> Int64Array:
    """For each path the number that the next new prefix would have gotten: lower ones are old."""
    highest: Int64Array = np.maximum.accumulate(np.concatenate([[-1], _last(numbers, indptr)]))
    highest += 1
    return highest[:-1]


def num_seen(numbers: Int32Array, indptr: Int64Array) -> Int64Array:
    """How many leading prefixes of each path an earlier path had."""
    seen: Int64Array = np.diff(indptr)
    seen -= np.maximum(0, _last(numbers, indptr) - first_new(numbers, indptr) + 1)
    return seen


def owners(numbers: Int32Array, indptr: Int64Array) -> Int64Array:
    """Of each prefix by its number: the path that had it first."""
    first = np.append(first_new(numbers, indptr), int(numbers.max()) + 1 if len(numbers) else 0)
    return np.repeat(np.arange(len(indptr) - 1), np.diff(first))


def at_depth(numbers: Int32Array, indptr: Int64Array, depth: Int64Array, root_of: Int32Array) -> Int64Array:
    """The number of each path's prefix of `depth` (0: a root, as a negative number)."""
    place = np.clip(indptr[:-1] + depth - 1, 0, max(0, len(numbers) - 1))
    here = numbers[place].astype(np.int64) if len(numbers) else np.zeros(len(depth), np.int64)
    return np.where(depth > 0, here, -1 - root_of.astype(np.int64))


def num_siblings(
    numbers: Int32Array, indptr: Int64Array, depth: Int64Array, root_of: Int32Array
) -> Int64Array:
    """In how many ways earlier paths went on behind the first `depth` elements of each path.

    `depth` must not be more than `num_seen`. O(paths log paths).
    """
    count = len(indptr) - 1
    first = np.append(first_new(numbers, indptr), int(numbers.max()) + 1 if len(numbers) else 0)
    runs = np.flatnonzero(np.diff(first))
    hangs_on = at_depth(numbers, indptr, num_seen(numbers, indptr), root_of)[runs]
    order = np.argsort(hangs_on, kind="stable")
    shift = int(root_of.max()) + 1 if count else 0
    keys = (hangs_on[order] + shift) * count + runs[order]
    here = at_depth(numbers, indptr, depth, root_of)
    left = np.searchsorted(keys, (here + shift) * count)
    right = np.searchsorted(keys, (here + shift) * count + np.arange(count))
    owner = np.searchsorted(first, here, side="right") - 1
    is_inner = (here >= 0) & (here + 1 < first[np.clip(owner + 1, 0, count)])
    return right - left + is_inner


def _last(numbers: Int32Array, indptr: Int64Array) -> Int64Array:
    last = np.full(len(indptr) - 1, -1, dtype=np.int64)
    filled = np.diff(indptr) > 0
    last[filled] = numbers[indptr[1:][filled] - 1]
    return last
