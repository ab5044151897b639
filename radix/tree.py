"""The radix tree: sequences of tokens and the pages their keys and values lie in."""

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from .candidates import Candidates
from .eviction import EvictionPolicy, PageUsage, Rank
from .hashing import Namespace, chain_hashes
from .lease import Lease
from .node import NO_HASHES, Node, Space
from .pages import PagePool
from .snapshot import tree_to_dict
from .tokens import Int32Array, UInt64Array, common_key_length, common_length, page_key


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where a walk along some tokens ends: whole pages, then a page that agrees for its first few tokens."""

    stop: Node | None  # where the walk ended; None in a namespace that has nothing
    node: Node | None  # the node of the last whole page; None when there is none
    runs: tuple[Int32Array, ...] = ()  # whole pages, node by node (copies)
    num_pages: int = 0
    partial_page: int | None = None
    partial_tokens: int = 0


@dataclass(slots=True, eq=False)
class Insertion:
    """What `insert` did to the tree, and where the next one goes on."""

    node: Node
    depth: int
    adopted: list[tuple[int, Int32Array]] = field(
        default_factory=list
    )  # index in the table, the tree's pages
    num_stored: int = 0  # by so many tokens the tree has grown
    hashes: UInt64Array = field(default_factory=lambda: NO_HASHES)  # of the whole pages that were stored


@dataclass(frozen=True, slots=True, eq=False)
class Evicted:
    """Pages cut from the end of one leaf, and the chain hashes of those that were whole."""

    pages: Int32Array
    hashes: UInt64Array


class RadixTree:
    """Token sequences → pages, one root for each namespace, with the evictable leaves kept in order.

    Nodes start and end on page boundaries, only a leaf may end inside a page. Walks are iterative, time is
    the caller's tick. The tree holds its pages in the pool (`hold`, `drop`); who else has one only the pool
    knows. `num_visits` counts the nodes that any operation looked at, `num_removals` how often pages left the
    tree.
    """

    def __init__(self, pool: PagePool, policy: EvictionPolicy) -> None:
        self.pool = pool
        self.page_size = pool.page_size
        self.policy = policy
        self.usage = PageUsage(pool.num_pages)
        self.spaces: dict[Namespace, Space] = {}
        self.candidates = Candidates()
        self.leaves: dict[int, Node] = {}
        self.leaf_of = np.zeros(pool.num_pages + 1, dtype=np.int64)  # last page of a leaf -> the leaf's id
        self.num_nodes = 0
        self.num_visits = 0
        self.num_removals = 0
        self.keeps_hashes = False
        self._next_id = 1

    def match(self, namespace: Namespace, tokens: Int32Array) -> Found:
        """The longest prefix of `tokens` in the tree, token-exact; a pure read.

        O(tokens compared + nodes on the path * log(children)), vectorised over the tokens.
        """
        space = self.spaces.get(namespace)
        if space is None:
            return Found(None, None)
        size = self.page_size
        runs: list[Int32Array] = []
        node = last = space.root
        depth = 0
        partial_page = None
        while True:
            self.num_visits += 1
            common = common_length(node.tokens, tokens[depth:])
            whole = common // size
            if whole:
                runs.append(node.pages[:whole].copy())
                last = node
                depth += whole * size
            partial_tokens = common - whole * size
            if partial_tokens:
                partial_page = int(node.pages[whole])
                break
            if depth < node.end or node.children is None or depth == len(tokens):
                break
            key = page_key(tokens[depth : depth + size])
            child = node.children.get(key)
            if child is None:
                child, partial_tokens = _nearest(node, key)
                partial_page = None if child is None else int(child.pages[0])
                break
            node = child
        return Found(node, last if depth else None, tuple(runs), depth // size, partial_page, partial_tokens)

    def insert(self, lease: Lease, tokens: Int32Array, tick: int) -> Insertion:
        """Put `tokens`, which lie in the lease's pages, into the tree; the last page may be partial.

        Goes on from the lease's cursor (node, depth). Where the tree has an equal whole page already, that
        page is reported in `adopted` and the lease's is not stored. A partial page is stored unless it begins
        a page that is there, and a page that it begins itself is replaced by it. O(tokens behind the cursor +
        nodes on the way * log(children)).
        """
        size, end = self.page_size, len(tokens)
        node, depth = self._start(lease), lease.depth
        done = Insertion(node, depth)
        while True:
            self.num_visits += 1
            common = common_length(node.tokens_from(depth), tokens[depth:])
            whole = common // size
            if whole:
                first = (depth - node.start) // size
                done.adopted.append((depth // size, node.pages[first : first + whole].copy()))
                depth += whole * size
                common -= whole * size
            if depth + common == end:
                break
            if depth == node.end and (node.children is not None or node.parent is None):
                child = _child_for(node, page_key(tokens[depth : depth + size]))
                if child is not None:
                    node = child
                    continue
                node = self._new_leaf(node)
            elif depth + common < node.end:
                node = self._new_leaf(self._split(node, depth))
                common = 0
            done.num_stored = end - depth - common
            done.hashes = self._extend(node, depth, tokens, lease, tick)
            depth = end - end % size
            break
        done.node, done.depth = node, depth
        return done

    def node_at(self, cursor: Node, depth: int) -> Node:
        """The node with the token before `depth` > 0, from one that had it: splits moved it upwards since.

        A cursor may have left the tree by itself, when the part of it behind `depth` was evicted; its parent
        still leads to the part before.
        """
        while depth <= cursor.start:
            self.num_visits += 1
            assert cursor.parent is not None
            cursor = cursor.parent
        return cursor

    def evict_first(self, max_pages: int) -> Evicted:
        """Evict from the first candidate, of which there must be one, and let the policy age.

        A namespace that is over its quota loses no more than what it has too much.
        O(log candidates + pages cut), however large the tree is.
        """
        leaf = self.leaves[self.candidates.first()]
        assert leaf.entry is not None
        rank = leaf.entry[0]
        excess = self.candidates.excess(leaf.space)
        evicted = self.evict_from(leaf, min(max_pages, excess) if excess else max_pages)
        self.policy.evicted(rank, len(evicted.pages))
        return evicted

    def evict_from(self, leaf: Node, max_pages: int) -> Evicted:
        """Cut up to `max_pages` pages that only the tree has from the end of a candidate.

        Only pages of the same usage are cut at once, so that every page goes in its turn.
        """
        self.num_visits += 1
        self.candidates.discard(leaf)
        count = 1
        if max_pages > 1 and leaf.num_pages > 1:
            tail = leaf.pages[-max_pages:]
            alone = self.pool.counts[tail] == 1
            count = len(tail) if alone.all() else int(alone[::-1].argmin())
            count = self.usage.num_alike_at_end(tail[-count:])
        keep = leaf.num_pages - count
        evicted = Evicted(leaf.pages[keep:].copy(), leaf.hashes[keep:].copy())
        self.leaf_of[leaf.last_page] = 0
        if keep:
            leaf.cut(keep, self.page_size)
            self._drop(leaf.space, evicted.pages)
            self._became_leaf(leaf)
        else:
            self._drop(leaf.space, evicted.pages)
            self._remove(leaf)
        return evicted

    def pages_retained(self, pages: Int32Array) -> None:
        """Requests took references to these pages: leaves that end in one are no candidates any more."""
        for leaf_id in self._leaf_ids(pages):
            self.candidates.discard(self.leaves[leaf_id])

    def pages_left(self, pages: Int32Array) -> None:
        """The tree alone has these pages now: leaves that end in one become candidates."""
        for leaf_id in self._leaf_ids(pages):
            self._list(self.leaves[leaf_id])

    def retire(self, pages: Int32Array) -> None:
        """These pages, which only the tree has, go before all others, until somebody uses them again."""
        self.pages_retained(pages)
        self.usage.retired[pages] = True
        self.pages_left(pages)

    def ends_at(self, page: int, depth: int) -> bool:
        """Whether a leaf with tokens up to `depth` ends in this page."""
        leaf = self.leaves.get(int(self.leaf_of[page]))
        return leaf is not None and leaf.end == depth

    def rank(self, leaf: Node) -> Rank:
        """By what a leaf goes before others: its last page's retirement, then what the policy says."""
        start = leaf.start + (leaf.num_pages - 1) * self.page_size
        rank = self.policy.rank(self.usage, leaf.last_page, start)
        return (-inf, *rank) if self.usage.retired[leaf.last_page] else rank

    def keep_hashes(self) -> None:
        """From now on every node has the chain hashes of its pages; those that are there get them. O(tree)."""
        if self.keeps_hashes:
            return
        self.keeps_hashes = True
        for space in self.spaces.values():
            for node in space.root.subtree():
                if node.parent is not None:
                    node.set_hashes(chain_hashes(node.tokens, self.page_size, node.parent.digest()))

    def to_dict(self) -> dict[str, Any]:
        """The tree as JSON-ready values, see `snapshot.tree_to_dict`. O(nodes)."""
        return tree_to_dict(self)

    def add_space(self, namespace: Namespace, max_pages: int | None) -> None:
        """Make the root of a namespace that has none; it goes with the namespace's last page."""
        self.spaces[namespace] = Space(namespace, self._new_id(), max_pages)

    def _start(self, lease: Lease) -> Node:
        if lease.node is None or lease.depth == 0:
            return self.spaces[lease.namespace].root
        return self.node_at(lease.node, lease.depth)

    def _new_leaf(self, parent: Node) -> Node:
        self.num_nodes += 1
        return Node(self._new_id(), parent, parent.space, parent.end)

    def _split(self, node: Node, depth: int) -> Node:
        self.num_nodes += 1
        return node.split_off_front(self._new_id(), (depth - node.start) // self.page_size, self.page_size)

    def _extend(self, leaf: Node, depth: int, tokens: Int32Array, lease: Lease, tick: int) -> UInt64Array:
        """Make `tokens[depth:]` the end of a leaf; a partial page that it has behind `depth` goes."""
        size, parent = self.page_size, leaf.parent
        assert parent is not None
        self.candidates.discard(leaf)
        replaced = None
        if leaf.num_pages:
            self.leaf_of[leaf.last_page] = 0
        if leaf.end > depth:
            replaced = leaf.last_page
            if leaf.start == depth:
                parent.remove_child(leaf, size)
            leaf.cut(leaf.num_pages - 1, size)
            self._drop(leaf.space, np.array([replaced], dtype=np.int32))
        pages = lease.pages[depth // size : -(-len(tokens) // size)]
        hashes = chain_hashes(tokens[depth:], size, leaf.digest()) if self.keeps_hashes else NO_HASHES
        leaf.append(tokens[depth:], pages, hashes)
        if leaf.start == depth:
            parent.add_child(leaf, size)
        self.pool.hold(pages)
        self.candidates.resize(leaf.space, len(pages))
        self.usage.store(pages, tick, lease.priority, self.policy.age, replaced)
        self.leaves[leaf.id] = leaf
        self.leaf_of[leaf.last_page] = leaf.id
        return hashes

    def _remove(self, leaf: Node) -> None:
        """Take an evicted leaf out; its parent may become a leaf, or its namespace go altogether."""
        parent = leaf.parent
        assert parent is not None
        parent.remove_child(leaf, self.page_size)
        del self.leaves[leaf.id]
        self.num_nodes -= 1
        if parent.children is not None:
            return
        if parent.parent is None:
            del self.spaces[parent.space.namespace]
        else:
            self.leaves[parent.id] = parent
            self._became_leaf(parent)

    def _became_leaf(self, leaf: Node) -> None:
        self.leaf_of[leaf.last_page] = leaf.id
        if self.pool.counts[leaf.last_page] == 1:
            self._list(leaf)

    def _list(self, leaf: Node) -> None:
        self.candidates.add(leaf, self.rank(leaf))

    def _leaf_ids(self, pages: Int32Array) -> list[int]:
        ids = self.leaf_of[pages]
        found: list[int] = ids[ids > 0].tolist()
        return found

    def _drop(self, space: Space, pages: Int32Array) -> None:
        self.pool.drop(pages)
        self.candidates.resize(space, -len(pages))
        self.num_removals += 1

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def _child_for(node: Node, key: bytes) -> Node | None:
    """The child whose first page begins with `key`, or is its beginning.

    There is one at most, next to the key's place, since no child's key begins another's.
    """
    if node.children is None:
        return None
    child: Node | None = node.children.get(key)
    if child is not None:
        return child
    place = node.children.bisect_left(key)
    if place < len(node.children):
        successor, child = node.children.peekitem(place)
        if successor.startswith(key):
            return child
    if place > 0:
        predecessor, child = node.children.peekitem(place - 1)
        if key.startswith(predecessor):
            return child
    return None


def _nearest(node: Node, key: bytes) -> tuple[Node | None, int]:
    """The child that shares most first tokens with a key, and how many: a neighbour of the key's place."""
    assert node.children is not None
    best: Node | None = None
    most = 0
    place = node.children.bisect_left(key)
    for neighbour in range(max(0, place - 1), min(len(node.children), place + 1)):
        other, child = node.children.peekitem(neighbour)
        common = common_key_length(key, other)
        if common > most:
            best, most = child, common
    return best, most
