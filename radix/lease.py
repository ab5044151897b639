"""What a lookup finds, and what a running request holds."""

from dataclasses import dataclass

import numpy as np

from .errors import LeaseReleased
from .hashing import Namespace
from .node import Node
from .tokens import NO_PAGES, Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMatch:
    """The longest cached prefix of some tokens, at the moment of the lookup; holds nothing.

    `num_tokens == len(pages) * page_size + partial_tokens`. `pages` (int32) are whole and can be shared as
    they are; `partial_page` agrees in its first `partial_tokens` (< page size) and has to be copied before it
    is written behind. The other fields are for `PrefixCache.acquire`.
    """

    num_tokens: int
    pages: Int32Array
    partial_page: int | None
    partial_tokens: int
    namespace: Namespace
    tokens: Int32Array  # what was looked up, cut at the limit
    num_prompt_tokens: int  # what was looked up, before it was cut
    node: Node | None
    num_removals: int  # the tree's count then: if it is the same, nothing found here has gone


class Lease:
    """What one running request holds: references to the pages of its page table.

        pages:  [ tree's own whole pages | pages of this request ......... ]
                0                     depth                      len(pages) * page_size   (tokens)

    `pages` is a view; `reserve` lets it grow and `commit` may put the tree's equal pages in the place of own
    ones. `copy_from` is the page of a partial match (its first `copy_tokens` tokens), held until
    `PrefixCache.copied`.
    """

    __slots__ = (
        "_num_pages",
        "_table",
        "copy_from",
        "copy_tokens",
        "depth",
        "is_released",
        "namespace",
        "node",
        "num_committed",
        "priority",
    )

    def __init__(self, namespace: Namespace, priority: int = 0) -> None:
        self.namespace = namespace
        self.priority = priority
        self.copy_from: int | None = None
        self.copy_tokens = 0
        self.num_committed = 0  # tokens found in the tree or offered to it
        self.node: Node | None = None  # cursor: the node of the last of ...
        self.depth = 0  # ... these tokens, which lie in whole pages of the tree
        self.is_released = False
        self._table: Int32Array = NO_PAGES
        self._num_pages = 0

    @property
    def pages(self) -> Int32Array:
        return self._table[: self._num_pages]

    @property
    def held_pages(self) -> Int32Array:
        """Every page the lease has a reference to: its table and the page to copy from."""
        if self.copy_from is None:
            return self.pages
        return np.append(self.pages, np.int32(self.copy_from))

    def append_pages(self, pages: Int32Array) -> None:
        """Put pages at the end of the table; amortised O(len(pages))."""
        total = self._num_pages + len(pages)
        if total > len(self._table):
            table = np.zeros(max(total, 2 * len(self._table)), dtype=np.int32)
            table[: self._num_pages] = self.pages
            self._table = table
        self._table[self._num_pages : total] = pages
        self._num_pages = total

    def require_live(self) -> None:
        """Raise LeaseReleased after the release."""
        if self.is_released:
            raise LeaseReleased(
                f"lease of {self._num_pages} pages in namespace {self.namespace} was released before"
            )
