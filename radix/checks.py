"""Every invariant of the tree and of the cache, recomputed from scratch."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from .errors import InvariantViolated
from .hashing import chain_hashes
from .node import NO_HASHES, Node
from .tokens import Int32Array
from .tree import RadixTree


def check_tree(tree: RadixTree) -> None:
    """Walk the whole tree and raise InvariantViolated where anything differs from what is kept. O(tree)."""
    owner: dict[int, int] = {}
    leaves: dict[int, Node] = {}
    num_nodes = 0
    for namespace, space in tree.spaces.items():
        _require(space.namespace == namespace, f"space {namespace} is kept under {space.namespace}")
        _require(bool(space.root.children), f"namespace {namespace} is empty")
        num_pages = 0
        for node in space.root.subtree():
            _check_children(tree, node)
            if node is space.root:
                continue
            _check_node(tree, node)
            num_nodes += 1
            num_pages += node.num_pages
            for page in node.pages.tolist():
                _require(page not in owner, f"page {page} is in nodes {owner.get(page)} and {node.id}")
                owner[page] = node.id
            if node.children is None:
                leaves[node.id] = node
        _require(
            num_pages == space.num_pages, f"{namespace}: num_pages {space.num_pages}, recount {num_pages}"
        )
    held = np.flatnonzero(tree.pool.held).tolist()
    _require(sorted(owner) == held, f"pool holds {held}, the tree has {sorted(owner)}")
    _require(num_nodes == tree.num_nodes, f"num_nodes {tree.num_nodes}, recount {num_nodes}")
    _check_leaves(tree, leaves)


def check_holders(tree: RadixTree, held_by_requests: Iterable[Int32Array]) -> None:
    """Every page's count is the number of its holders: the leases' and the tree's references."""
    counts = tree.pool.held.astype(np.int32)
    for pages in held_by_requests:
        np.add.at(counts, pages, 1)
    wrong = np.flatnonzero(counts != tree.pool.counts).tolist()
    details = [(page, int(tree.pool.counts[page]), int(counts[page])) for page in wrong]
    _require(not wrong, f"(page, count, holders) differ: {details}")


def _check_node(tree: RadixTree, node: Node) -> None:
    size = tree.page_size
    name = f"node {node.id} at {node.start}..{node.end}"
    _require(
        node.parent is not None and node.parent.end == node.start,
        f"{name} does not start at its parent's end",
    )
    _require(node.num_tokens > 0 and node.start % size == 0, f"{name} is empty or off the page boundary")
    _require(node.end % size == 0 or node.children is None, f"{name} ends inside a page and has children")
    _require(node.num_pages == -(-node.num_tokens // size), f"{name} has {node.num_pages} pages")
    above = node.parent.digest() if node.parent is not None else b""
    hashes = chain_hashes(node.tokens, size, above) if tree.keeps_hashes else NO_HASHES
    _require(np.array_equal(node.hashes, hashes), f"{name}: page hashes differ")
    counts = tree.pool.counts[node.pages]
    _require(
        bool((np.diff(counts) <= 0).all()),
        f"{name}: a page is held without the one before it: {counts.tolist()}",
    )


def _check_children(tree: RadixTree, node: Node) -> None:
    if node.children is None:
        return
    keys = list(node.children)
    _require(keys == sorted(keys), f"children of node {node.id} are out of order")
    for key, following in pairwise(keys):
        _require(not following.startswith(key), f"node {node.id}: key {key.hex()} begins {following.hex()}")
    for key, child in node.children.items():
        _require(child.key(tree.page_size) == key, f"node {child.id} is under key {key.hex()}")
        _require(
            child.parent is node and child.space is node.space, f"node {child.id} is not a child of {node.id}"
        )
        if node.parent is not None:
            above, below = int(tree.pool.counts[node.last_page]), int(tree.pool.counts[child.pages[0]])
            _require(
                below <= above, f"node {child.id}: first page has count {below}, its parent's last {above}"
            )


def _check_leaves(tree: RadixTree, leaves: dict[int, Node]) -> None:
    _require(leaves == tree.leaves, f"leaves are {sorted(leaves)}, kept are {sorted(tree.leaves)}")
    leaf_of = {leaf.last_page: leaf.id for leaf in leaves.values()}
    kept = {int(page): int(tree.leaf_of[page]) for page in np.flatnonzero(tree.leaf_of)}
    _require(leaf_of == kept, f"last pages of leaves are {leaf_of}, kept are {kept}")
    evictable = []
    for leaf in leaves.values():
        entry = (tree.rank(leaf), leaf.id)
        alone = tree.pool.counts[leaf.last_page] == 1
        _require(
            leaf.entry == (entry if alone else None), f"leaf {leaf.id} has entry {leaf.entry}, not {entry}"
        )
        if alone:
            evictable.append(entry)
    entries = tree.candidates.entries()
    _require(
        sorted(evictable) == entries, f"candidates are {entries}, evictable leaves are {sorted(evictable)}"
    )
    for space in tree.spaces.values():
        own = [
            entry for entry in entries if tree.leaves[entry[1]].space is space and space.max_pages is not None
        ]
        _require(
            own == tree.candidates.own_entries(space), f"{space.namespace}: own candidates differ from {own}"
        )
        excess = 0 if space.max_pages is None else max(0, space.num_pages - space.max_pages)
        _require(
            excess == tree.candidates.excess(space), f"{space.namespace}: over its quota by {excess} pages"
        )


def _require(fine: bool, problem: str) -> None:
    if not fine:
        raise InvariantViolated(problem)
