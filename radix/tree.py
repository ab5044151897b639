"""The radix tree: sequences of tokens and the pages their keys and values lie in."""

from dataclasses import dataclass, field

import numpy as np

from .candidates import Candidates
from .eviction import EvictionPolicy, PageUsage
from .hashing import Namespace, chain_hashes
from .node import Node, Space
from .pages import PagePool
from .tokens import Int32Array, UInt64Array, common_key_length, common_length, page_key


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where a walk along some tokens ends: whole pages, then a page that agrees for its first few tokens."""

    node: Node | None  # the node of the last whole page; None when there is none
    runs: tuple[Int32Array, ...]  # whole pages, node by node (copies)
    num_pages: int
    partial_page: int | None
    partial_tokens: int


@dataclass(slots=True)
class Insertion:
    """What `insert` did to the tree."""

    node: Node
    depth: int  # tokens in whole pages up to here: the next insertion goes on at (node, depth)
    adopted: list[tuple[int, Int32Array]] = field(
        default_factory=list
    )  # index in the page table, the tree's pages
    num_stored: int = 0  # by so many tokens the tree has grown
    hashes: UInt64Array | None = None  # of whole pages that the tree did not have


@dataclass(frozen=True, slots=True, eq=False)
class Evicted:
    """Pages cut from one leaf, and the chain hashes of those that were whole."""

    pages: Int32Array
    hashes: UInt64Array
    rank: tuple[float, ...]


class RadixTree:
    """Token sequences → pages, one root for each namespace, with the evictable leaves kept in order.

    Nodes start and end on page boundaries, only a leaf may end inside a page. Walks are iterative, time is the
    caller's tick. The tree holds its pages in the pool (`hold`, `drop`); who else has a page is the pool's to know.
    `num_visits` counts the nodes that any operation looked at.
    """

    def __init__(self, pool: PagePool, policy: EvictionPolicy, default_max_pages: int | None = None) -> None:
        self.pool = pool
        self.page_size = pool.page_size
        self.policy = policy
        self.usage = PageUsage(pool.num_pages)
        self.spaces: dict[Namespace, Space] = {}
        self.candidates = Candidates()
        self.leaf_of = np.zeros(pool.num_pages + 1, dtype=np.int64)  # last page of a leaf -> the leaf's id
        self.leaves: dict[int, Node] = {}
        self.max_pages: dict[Namespace, int] = {}
        self.default_max_pages = default_max_pages
        self.num_visits = 0
        self.num_nodes = 0
        self.num_removals = 0
        self._next_id = 1

    def match(self, namespace: Namespace, tokens: Int32Array) -> Found:
        """The longest prefix of `tokens` in the tree, token-exact; a pure read.

        O(tokens compared + nodes on the path * log(children)), vectorised over the tokens.
        """
        size = self.page_size
        runs: list[Int32Array] = []
        num_pages = 0
        space = self.spaces.get(namespace)
        if space is None:
            return Found(None, (), 0, None, 0)
        node = last = space.root
        depth = 0
        partial_page, partial_tokens = None, 0
        while True:
            self.num_visits += 1
            common = common_length(node.tokens, tokens[depth:])
            whole = common // size
            if whole:
                runs.append(node.pages[:whole].copy())
                num_pages += whole
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
                if child is not None:
                    partial_page = int(child.pages[0])
                break
            node = child
        return Found(last if num_pages else None, tuple(runs), num_pages, partial_page, partial_tokens)

    def insert(
        self, namespace: Namespace, cursor: Node | None, depth: int, tokens: Int32Array, table: Int32Array, tick: int,
        priority: int,
    ) -> Insertion:  # fmt: skip
        """Put `tokens[depth:]`, which lie in the pages of `table`, behind (cursor, depth); the last page may be partial.

        `table` has the tree's own pages up to `depth`. Where the tree has an equal whole page already, that page is
        reported in `adopted` and ours is not stored. A partial page is stored unless it begins a page that is there;
        a page that it begins takes its place. O(new tokens + nodes on the way * log(children)).
        """
        size = self.page_size
        node = self._place(namespace, cursor, depth)
        end = len(tokens)
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
                break  # the tree has all of it, the last tokens perhaps as the beginning of a page
            if depth == node.end and (node.children is not None or node.parent is None):
                child = self._child_for(node, tokens[depth : depth + size])
                if child is not None:
                    node = child
                    continue
                node = self._new_leaf(node, depth)
            elif depth + common < node.end:
                node = self._new_leaf(self._split(node, depth), depth)
                common = 0
            done.num_stored = end - depth - common
            done.hashes = self._extend(node, depth, tokens, table, tick, priority)
            depth = end - end % size
            break
        done.node, done.depth = node, depth
        return done

    def node_at(self, cursor: Node, depth: int) -> Node:
        """The node that has the token before `depth` > 0, from one that had it: splits since then moved it upwards."""
        while depth <= cursor.start:
            self.num_visits += 1
            assert cursor.parent is not None
            cursor = cursor.parent
        return cursor

    def evict_leaf(self, max_pages: int) -> Evicted:
        """Cut up to `max_pages` pages that only the tree has from the end of the first candidate.

        Only pages with the same usage are cut at once, so that every page goes in its turn.
        O(log candidates + pages cut), however large the tree is. There must be a candidate.
        """
        leaf = self.leaves[self.candidates.first()]
        self.num_visits += 1
        assert leaf.entry is not None
        rank = leaf.entry[0]
        self.candidates.discard(leaf)
        count = 1
        if max_pages > 1 and leaf.num_pages > 1:
            tail = leaf.pages[-max_pages:]
            alone = self.pool.counts[tail] == 1
            count = len(tail) if alone.all() else int(alone[::-1].argmin())
            count = self.usage.num_alike_at_end(tail[-count:])
        keep = leaf.num_pages - count
        evicted = Evicted(leaf.pages[keep:].copy(), leaf.hashes[keep:].copy(), rank)
        self._cut(leaf, keep)
        return evicted

    def pages_retained(self, pages: Int32Array) -> None:
        """Requests took references to these pages: leaves that end in one are no candidates any more."""
        for leaf_id in self._leaf_ids(pages):
            self.candidates.discard(self.leaves[leaf_id])

    def pages_left(self, pages: Int32Array) -> None:
        """The tree alone has these pages now: leaves that end in one become candidates."""
        for leaf_id in self._leaf_ids(pages):
            self._list(self.leaves[leaf_id])

    def _leaf_ids(self, pages: Int32Array) -> list[int]:
        ids = self.leaf_of[pages]
        return [int(leaf_id) for leaf_id in ids[ids > 0]]

    def _place(self, namespace: Namespace, cursor: Node | None, depth: int) -> Node:
        """Where an insertion goes on: at the cursor, or at the namespace's root, which is made where there is none."""
        if depth == 0 or cursor is None:
            space = self.spaces.get(namespace)
            if space is None:
                space = Space(
                    namespace, self._new_id(), self.max_pages.get(namespace, self.default_max_pages)
                )
                self.spaces[namespace] = space
            return space.root
        return self.node_at(cursor, depth)

    def _child_for(self, node: Node, page: Int32Array) -> Node | None:
        """The child whose first page begins with `page` or is begun by it; keys never begin one another, so one at most."""
        if node.children is None:
            return None
        key = page_key(page)
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

    def _new_leaf(self, parent: Node, depth: int) -> Node:
        self.num_nodes += 1
        return Node(self._new_id(), parent, parent.space, depth)

    def _split(self, node: Node, depth: int) -> Node:
        self.num_nodes += 1
        return node.split_off_front(self._new_id(), (depth - node.start) // self.page_size, self.page_size)

    def _extend(
        self, leaf: Node, depth: int, tokens: Int32Array, table: Int32Array, tick: int, priority: int
    ) -> UInt64Array:
        """Make `tokens[depth:]` the end of a leaf whose whole pages end at `depth`; a partial page behind them goes."""
        size = self.page_size
        self.candidates.discard(leaf)
        old_page = None
        if leaf.num_pages:
            self.leaf_of[leaf.last_page] = 0
        parent = leaf.parent
        assert parent is not None
        if leaf.end > depth:
            old_page = leaf.last_page
            if leaf.start == depth:
                parent.remove_child(leaf, size)
            leaf.cut(leaf.num_pages - 1, size)
            self._drop(leaf.space, np.array([old_page], dtype=np.int32))
        pages = table[depth // size : -(-len(tokens) // size)]
        hashes = chain_hashes(tokens[depth:], size, leaf.digest())
        leaf.append(tokens[depth:], pages, hashes)
        if leaf.start == depth:
            parent.add_child(leaf, size)
        self.pool.hold(pages)
        leaf.space.num_pages += len(pages)
        self.usage.store(pages, tick, priority, self.policy.age, old_page)
        self.leaves[leaf.id] = leaf
        self.leaf_of[leaf.last_page] = leaf.id
        return hashes

    def _cut(self, leaf: Node, keep: int) -> None:
        """Drop all but the first `keep` pages of a leaf that is no candidate; an empty leaf goes altogether."""
        pages = leaf.pages[keep:].copy()
        self.leaf_of[pages[-1]] = 0
        if keep:
            leaf.cut(keep, self.page_size)
            self._drop(leaf.space, pages)
            self._end_leaf(leaf)
            return
        parent = leaf.parent
        assert parent is not None
        parent.remove_child(leaf, self.page_size)
        self._drop(leaf.space, pages)
        # The leaf keeps its parent: a cursor whose place was split off upwards still climbs through it.
        del self.leaves[leaf.id]
        self.num_nodes -= 1
        if parent.children is None:
            if parent.parent is None:
                del self.spaces[parent.space.namespace]
            else:
                self.leaves[parent.id] = parent
                self._end_leaf(parent)

    def _end_leaf(self, leaf: Node) -> None:
        """Enter the new last page of a leaf."""
        self.leaf_of[leaf.last_page] = leaf.id
        if self.pool.counts[leaf.last_page] == 1:
            self._list(leaf)

    def _list(self, leaf: Node) -> None:
        page = leaf.last_page
        start = leaf.start + (leaf.num_pages - 1) * self.page_size
        self.candidates.add(leaf, self.policy.rank(self.usage, page, start))

    def _drop(self, space: Space, pages: Int32Array) -> None:
        self.pool.drop(pages)
        space.num_pages -= len(pages)
        self.num_removals += 1

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def _nearest(node: Node, key: bytes) -> tuple[Node | None, int]:
    """The child that shares most first tokens with a key no child has, and how many: a neighbour of its place."""
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
