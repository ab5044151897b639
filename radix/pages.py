"""Who owns which page: reference counts over one pool of page numbers."""

import numpy as np
import numpy.typing as npt

from trunkline.errors import ConfigError

from .errors import InvariantViolated, OutOfPages, PageStateError
from .tokens import NO_PAGES, Int32Array, as_index

# A contiguous run is looked for among this many of the lowest free pages (and 8 times the number asked for).
RUN_SEARCH_PAGES = 4096
# Pages given back are sorted in early where the sorted ones are at most so many times as many.
SORTED_PER_RELEASED = 64


class PagePool:
    """Pages 1..num_pages with reference counts; the only place where a page changes its owner.

    A page is free (count 0), evictable (the tree alone has it: held, count 1) or in use (anything else).
    The three numbers are kept in O(1) and add up to `num_pages`. Page 0 is padding and never handed out.
    All methods take int32 arrays, are vectorised over them, and change nothing when they raise.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1:
            raise ConfigError(f"num_pages must be at least 1, got {num_pages}")
        if page_size < 1:
            raise ConfigError(f"page_size must be at least 1, got {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_evictable = 0
        self.highest = 0
        """The highest page that was ever handed out."""
        self.counts: Int32Array = np.zeros(num_pages + 1, dtype=np.int32)
        self.held = np.zeros(num_pages + 1, dtype=np.bool_)
        self._free: Int32Array = np.arange(1, num_pages + 1, dtype=np.int32)
        self._released: list[Int32Array] = []
        self._num_released = 0
        self._order: Int32Array = np.zeros(num_pages + 1, dtype=np.int32)

    @property
    def num_free(self) -> int:
        return len(self._free) + self._num_released

    @property
    def num_in_use(self) -> int:
        return self.num_pages - self.num_free - self.num_evictable

    def allocate(self, n: int) -> Int32Array:
        """Hand out `n` free pages with count 1, sorted, contiguous where a run is found.

        Raises OutOfPages. Amortised O(n log n): pages given back are sorted in only when the sorted ones run
        out, or where they are many and spare a page its first use, which costs time and memory.
        """
        if n < 0:
            raise PageStateError(f"cannot allocate {n} pages")
        if n > self.num_free:
            raise OutOfPages(f"{n} pages asked for, {self.num_free} of {self.num_pages} are free")
        if n > len(self._free) or (n and self._is_worth_sorting(n)):
            self._free = np.concatenate([self._free, *self._released])
            self._free.sort()
            self._released.clear()
            self._num_released = 0
        first = self._find_run(n)
        pages = self._free[first : first + n].copy()
        if first:
            self._free[n : first + n] = self._free[:first].copy()
        self._free = self._free[n:]
        self.counts[pages] = 1
        if n:
            self.highest = max(self.highest, pages.item(-1))
        return pages

    def retain(self, pages: Int32Array) -> None:
        """Add one reference to each page; all must be in use or held. Raises PageStateError."""
        index, counts = self._counts_of(pages)
        self._require(pages, index, counts > 0, "retain", "is free")
        self.num_evictable -= int(np.count_nonzero(self.held[index] & (counts == 1)))
        self.counts[index] += 1

    def release(self, pages: Int32Array) -> Int32Array:
        """Take one reference from each page; a page whose count reaches 0 is free.

        Returns the pages that only the tree has now. Raises PageStateError for a free page, or where the
        tree's own reference is the only one left (that one goes by `drop`).
        """
        index, counts = self._counts_of(pages)
        held = self.held[index]
        self._require(pages, index, counts > held, "release", "has no such reference")
        free_now, left = pages[counts == 1], counts == 2
        self.counts[index] -= 1
        self._free_now(free_now)
        evictable: Int32Array = pages[held & left]
        self.num_evictable += len(evictable)
        return evictable

    def hold(self, pages: Int32Array) -> None:
        """Give the tree its own reference to pages that are in use. Raises PageStateError."""
        index, counts = self._counts_of(pages)
        self._require(pages, index, (counts > 0) & ~self.held[index], "hold", "is free or held")
        self.held[index] = True
        self.counts[index] += 1

    def drop(self, pages: Int32Array) -> None:
        """Take the tree's own reference away; pages that nobody else has are free. Raises PageStateError."""
        if len(pages) == 1 and 0 < pages.item() <= self.num_pages and self.held[pages.item()]:
            self._drop_one(pages.item(), pages)
            return
        index, counts = self._counts_of(pages)
        self._require(pages, index, self.held[index], "drop", "is not held by the tree")
        alone = pages[counts == 1]
        self.held[index] = False
        self.counts[index] -= 1
        self.num_evictable -= len(alone)
        self._free_now(alone)

    def check(self) -> None:
        """Recount everything and raise InvariantViolated where a kept value differs. O(num_pages)."""
        free = np.sort(np.concatenate([self._free, *self._released, NO_PAGES]))
        counted = np.flatnonzero(self.counts[1:] == 0).astype(np.int32) + 1
        if not np.array_equal(free, counted):
            raise InvariantViolated(
                f"free list {free.tolist()} but pages with count 0 are {counted.tolist()}"
            )
        if (self.counts < self.held).any() or self.counts[0] or self.held[0]:
            bad = np.flatnonzero(self.counts < self.held).tolist()
            raise InvariantViolated(
                f"counts below the tree's own reference at pages {bad}, page 0: {self.counts[0]}"
            )
        if (np.diff(self._free) <= 0).any():
            raise InvariantViolated(f"free pages are not sorted: {self._free.tolist()}")
        evictable = int(np.count_nonzero(self.held & (self.counts == 1)))
        if evictable != self.num_evictable:
            raise InvariantViolated(f"num_evictable is {self.num_evictable}, a recount gives {evictable}")

    def _drop_one(self, page: int, pages: Int32Array) -> None:
        # A decode step in a full pool evicts page by page; numpy's cost for each call would be most of that.
        count = self.counts.item(page)
        self.held[page] = False
        self.counts[page] = count - 1
        if count == 1:
            self.num_evictable -= 1
            self._free_now(pages.copy())

    def _free_now(self, pages: Int32Array) -> None:
        if len(pages):
            self._released.append(pages)
            self._num_released += len(pages)

    def _is_worth_sorting(self, n: int) -> bool:
        """Whether the `n` lowest sorted pages reach beyond the used ones, and sorting costs little a page."""
        return (
            self._num_released * SORTED_PER_RELEASED > len(self._free)
            and self._free.item(n - 1) > self.highest
        )

    def _find_run(self, n: int) -> int:
        """Where in the sorted free pages to take `n`: the lowest contiguous run, else the lowest pages."""
        free = self._free[: max(RUN_SEARCH_PAGES, 8 * n)]
        if n < 2 or free[n - 1] - free[0] == n - 1:
            return 0
        runs = free[n - 1 :] - free[: len(free) - n + 1] == n - 1
        return int(runs.argmax())

    def _counts_of(self, pages: Int32Array) -> tuple[slice | Int32Array, Int32Array]:
        """The pages as an index, and their counts, which the next change to `self.counts` may change too.

        Raises PageStateError for numbers outside 0..num_pages (0 has count 0).
        """
        index = as_index(pages)
        if isinstance(index, slice) and index.stop <= self.num_pages + 1:
            return index, self.counts[index]
        try:
            # as unsigned, a negative number becomes too large
            return pages, self.counts.take(pages.view(np.uint32))
        except IndexError:
            bad = pages[(pages < 1) | (pages > self.num_pages)]
            raise PageStateError(f"page {int(bad[0])} is not one of 1..{self.num_pages}") from None

    def _require(
        self,
        pages: Int32Array,
        index: slice | Int32Array,
        fine: npt.NDArray[np.bool_],
        verb: str,
        problem: str,
    ) -> None:
        if not fine.all():
            page = int(pages[fine.argmin()])
            raise PageStateError(f"cannot {verb} page {page}: it {problem} (count {int(self.counts[page])})")
        if len(pages) > 1 and not isinstance(index, slice):  # a run has no page twice
            order = np.arange(len(pages), dtype=np.int32)
            self._order[pages] = order
            twice = self._order[pages] != order
            if twice.any():
                raise PageStateError(f"cannot {verb} page {int(pages[twice.argmax()])} twice in one call")
