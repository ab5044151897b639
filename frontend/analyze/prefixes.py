"""The tree of all prefixes, node by node, as far as a person wants to see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .paths import first_new
from .trace import Trace
from .types import Int64Array

_HEAD_TOKENS = 48


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """One row for each stretch of blocks that the same requests went through, parents before children.

    Node i: blocks `first[i]` .. `first[i] + length[i]` (by number), the first one `depth[i]` blocks below the
    root, used by `visits[i]` requests; `parent[i]` is -1 below a root. All int64.
    """

    first: Int64Array
    length: Int64Array
    depth: Int64Array
    parent: Int64Array
    visits: Int64Array

    def __len__(self) -> int:
        return len(self.first)


def prefix_tree(trace: Trace) -> PrefixTree:
    """The radix tree of all paths. O(blocks), vectorised."""
    blocks, count = trace.blocks, trace.num_distinct_blocks
    if not count:
        none = np.zeros(0, np.int64)
        return PrefixTree(none, none, none, none, none)
    visits = np.bincount(blocks, minlength=count)
    starts = np.zeros(count, dtype=bool)
    starts[1:] = visits[1:] != visits[:-1]
    base = np.append(first_new(blocks, trace.indptr), count)
    runs = np.flatnonzero(np.diff(base))
    starts[base[runs]] = True
    first = np.flatnonzero(starts).astype(np.int64)
    owner = np.searchsorted(base, first, side="right") - 1
    run_depth = np.diff(trace.indptr) - np.diff(base)
    depth = run_depth[owner] + first - base[owner]
    at = trace.indptr[owner] + depth - 1
    above = np.where(depth > 0, blocks[np.maximum(at, 0)], -1)
    parent = np.where(depth > 0, np.searchsorted(first, above, side="right") - 1, -1)
    return PrefixTree(first, np.diff(np.append(first, count)), depth, parent, visits[first].astype(np.int64))


def top_prefixes(trace: Trace, tree: PrefixTree, count: int, by: str) -> list[dict[str, Any]]:
    """The prefixes that are shared most, by "tokens" that need not be computed again or by "count" of requests.

    `reused_tokens` counts the last node's tokens, once for each request but the first.
    """
    reused = (tree.visits - 1) * tree.length * trace.block_size
    shared = np.flatnonzero(tree.visits > 1)
    keys = (-reused, -tree.visits) if by == "tokens" else (-tree.visits, -reused)
    order = shared[np.lexsort((tree.first[shared], keys[1][shared], keys[0][shared]))][:count]
    return [
        {
            "prefix_tokens": int((tree.depth[node] + tree.length[node]) * trace.block_size),
            "node_tokens": int(tree.length[node] * trace.block_size),
            "requests": int(tree.visits[node]),
            "reused_tokens": int(reused[node]),
            "first_request": trace.ids[_owner(trace, int(tree.first[node]))],
            "text": head_text(trace, tree, int(node)),
        }
        for node in order.tolist()
    ]


def drawn_tree(trace: Trace, tree: PrefixTree, most: int) -> list[dict[str, Any]]:
    """The heaviest nodes (requests times tokens) with all above them, for a drawing; at most about `most`.

    What is left out appears as one node with `others` for each parent.
    """
    weight = tree.visits * tree.length
    chosen: set[int] = set()
    for node in np.lexsort((tree.first, -weight)).tolist():
        if len(chosen) >= most:
            break
        while node >= 0 and node not in chosen:
            chosen.add(node)
            node = int(tree.parent[node])
    parents, lengths = tree.parent.tolist(), tree.length.tolist()
    left: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        if node not in chosen and (parent < 0 or parent in chosen):
            left.setdefault(parent, []).append(node)
    rows = [_drawn(trace, tree, node, parents[node], lengths[node]) for node in sorted(chosen)]
    return rows + list(_others(tree, left))


def head_text(trace: Trace, tree: PrefixTree, node: int) -> str:
    """The first words of a node, or its first block's number where there is no text."""
    block = int(tree.first[node])
    if trace.text is None:
        return f"block {block}"
    owner, start = _owner(trace, block), int(tree.depth[node]) * trace.block_size
    tokens = trace.text.of(owner)[start : start + _HEAD_TOKENS]
    return str(trace.text.decode(tokens.tolist(), skip_special=False))


def _owner(trace: Trace, block: int) -> int:
    return int(np.searchsorted(first_new(trace.blocks, trace.indptr), block, side="right")) - 1


def _drawn(trace: Trace, tree: PrefixTree, node: int, parent: int, length: int) -> dict[str, Any]:
    return {
        "id": node,
        "parent": parent,
        "tokens": length * trace.block_size,
        "depth": int(tree.depth[node]) * trace.block_size,
        "requests": int(tree.visits[node]),
        "text": head_text(trace, tree, node),
    }


def _others(tree: PrefixTree, left: dict[int, list[int]]) -> Iterator[dict[str, Any]]:
    for parent, nodes in sorted(left.items()):
        yield {
            "id": -2 - parent,
            "parent": parent,
            "others": len(nodes),
            "requests": int(tree.visits[nodes].sum()),
        }
