"""A node of the tree: a run of tokens, the pages they lie in, and its children."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from sortedcontainers import SortedDict

from .eviction import Rank
from .hashing import Namespace, hash_digest, namespace_seed
from .tokens import NO_PAGES, Int32Array, UInt64Array, page_key

NO_HASHES: UInt64Array = np.empty(0, dtype=np.uint64)


class Space:
    """One namespace: its root, the start of its hash chain and how many pages the tree holds in it."""

    __slots__ = ("max_pages", "namespace", "num_pages", "root", "seed")

    def __init__(self, namespace: Namespace, node_id: int, max_pages: int | None) -> None:
        self.namespace = namespace
        self.seed = namespace_seed(namespace)
        self.num_pages = 0
        self.max_pages = max_pages
        self.root = Node(node_id, None, self, 0)


class Node:
    """Tokens `start` .. `end` of a sequence, in pages, behind those of its parent.

        parent ..........|<------------ tokens ------------>|
                       start    pages[0]   pages[1] ...     end

    `start` is a multiple of the page size; `end` too, except that a leaf may end inside a page. `hashes` has
    one chain hash for each whole page, or none at all while the tree keeps no hashes. The arrays grow in
    place with doubling capacity; a view taken before a change may be out of date after it. `children` is
    sorted by the bytes of each child's first page, and no key begins another key. A root has no tokens and no
    parent.
    """

    __slots__ = (
        "_hashes",
        "_pages",
        "_tokens",
        "children",
        "entry",
        "id",
        "num_hashes",
        "num_pages",
        "num_tokens",
        "parent",
        "space",
        "start",
    )

    def __init__(self, node_id: int, parent: "Node | None", space: Space, start: int) -> None:
        self.id = node_id
        self.parent = parent
        self.space = space
        self.start = start
        self.num_tokens = 0
        self.num_pages = 0
        self.num_hashes = 0
        self._tokens: Int32Array = NO_PAGES
        self._pages: Int32Array = NO_PAGES
        self._hashes: UInt64Array = NO_HASHES
        self.children: SortedDict | None = None
        self.entry: tuple[Rank, int] | None = None

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def tokens(self) -> Int32Array:
        return self._tokens[: self.num_tokens]

    @property
    def pages(self) -> Int32Array:
        return self._pages[: self.num_pages]

    @property
    def hashes(self) -> UInt64Array:
        return self._hashes[: self.num_hashes]

    @property
    def last_page(self) -> int:
        return int(self._pages[self.num_pages - 1])

    def tokens_from(self, depth: int) -> Int32Array:
        """The node's tokens from position `depth` of the sequence on."""
        return self._tokens[depth - self.start : self.num_tokens]

    def key(self, page_size: int) -> bytes:
        """What the parent's `children` has this node under."""
        return page_key(self._tokens[: min(page_size, self.num_tokens)])

    def digest(self) -> bytes:
        """The chain digest at the end of the node's whole pages."""
        node: Node | None = self
        while node is not None and node.num_hashes == 0:
            node = node.parent
        return self.space.seed if node is None else hash_digest(node._hashes[node.num_hashes - 1])

    def append(self, tokens: Int32Array, pages: Int32Array, hashes: UInt64Array) -> None:
        """Grow at the end, which must be on a page boundary. Amortised O(what is new)."""
        self._tokens = _appended(self._tokens, self.num_tokens, tokens)
        self._pages = _appended(self._pages, self.num_pages, pages)
        self._hashes = _appended(self._hashes, self.num_hashes, hashes)
        self.num_tokens += len(tokens)
        self.num_pages += len(pages)
        self.num_hashes += len(hashes)

    def set_hashes(self, hashes: UInt64Array) -> None:
        """The chain hashes of all whole pages, for a node that has none yet."""
        self._hashes, self.num_hashes = hashes, len(hashes)

    def cut(self, num_pages: int, page_size: int) -> None:
        """Keep only the first `num_pages` pages."""
        self.num_pages = num_pages
        self.num_tokens = min(self.num_tokens, num_pages * page_size)
        self.num_hashes = min(self.num_hashes, num_pages)

    def split_off_front(self, node_id: int, num_pages: int, page_size: int) -> "Node":
        """Move the first `num_pages` pages into a new node between the parent and this one, which keeps its
        identity.

            parent -> self            becomes            parent -> upper -> self

        So a cursor that points into this node still finds its place, by climbing while its depth is at or
        above `start`.
        """
        upper = Node(node_id, self.parent, self.space, self.start)
        num_tokens = num_pages * page_size
        key = self.key(page_size)
        upper.append(self._tokens[:num_tokens], self._pages[:num_pages], self._hashes[:num_pages])
        self._tokens = self.tokens[num_tokens:].copy()
        self._pages = self.pages[num_pages:].copy()
        self._hashes = self.hashes[num_pages:].copy()
        self.num_tokens, self.num_pages, self.num_hashes = (
            len(self._tokens),
            len(self._pages),
            len(self._hashes),
        )
        self.start += num_tokens
        if self.parent is not None and self.parent.children is not None:
            self.parent.children[key] = upper
        self.parent = upper
        upper.children = SortedDict({self.key(page_size): self})
        return upper

    def add_child(self, child: "Node", page_size: int) -> None:
        """Enter a child that has tokens under its key."""
        if self.children is None:
            self.children = SortedDict()
        self.children[child.key(page_size)] = child

    def remove_child(self, child: "Node", page_size: int) -> None:
        """Take a child out; without children a node has `children` None."""
        assert self.children is not None
        del self.children[child.key(page_size)]
        if not self.children:
            self.children = None

    def subtree(self) -> Iterator["Node"]:
        """This node and all below it, parents first, in token order."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            if node.children is not None:
                stack.extend(reversed(node.children.values()))


def _appended(buffer: Any, size: int, values: Any) -> Any:
    """`buffer` with `values` behind its first `size` elements, copied to twice the capacity when full."""
    total = size + len(values)
    if size == 0:
        return values.copy()
    if total > len(buffer):
        grown = np.empty(max(total, 2 * len(buffer)), dtype=buffer.dtype)
        grown[:size] = buffer[:size]
        buffer = grown
    buffer[size:total] = values
    return buffer
