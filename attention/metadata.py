"""Which tokens of a step belong to which request, and where their keys lie."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import MetadataError

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """One step of b requests and t new tokens, in FlashInfer's CSR form, on the CPU.

    Request i computes tokens `qo_indptr[i]:qo_indptr[i + 1]` of the step; its keys lie in the pages
    `kv_indices[kv_indptr[i]:kv_indptr[i + 1]]`, the last of which holds `kv_last_page_len[i]` of them, the
    new tokens' included:

        kv_indices   | 7 2 9 | 4 | ...        page tables, end to end
                     ^       ^   ^
        kv_indptr    0       3   4            request 0 has pages 7, 2, 9

    `positions[t]` counts from the start of the token's own request; `slot_mapping[t]` = page · page_size +
    offset is where its key and value are written. Offsets and pages are int32, positions and slots int64.

    Without `mask` attention is causal. A mask replaces that (trees of drafted tokens): it holds, request after request
    and row by row, whether new token i sees key j, bool [sum of q_len · kv_len]; a layer's window hides
    what it hides besides.

    Raises MetadataError when the arrays contradict each other or a slot would be written twice.
    """

    page_size: int
    qo_indptr: Int32Array
    kv_indptr: Int32Array
    kv_indices: Int32Array
    kv_last_page_len: Int32Array
    positions: Int64Array
    slot_mapping: Int64Array
    mask: BoolArray | None = None

    def __post_init__(self) -> None:
        _check_indptr("qo_indptr", self.qo_indptr, len(self.positions))
        _check_indptr("kv_indptr", self.kv_indptr, len(self.kv_indices))
        if len(self.kv_indptr) != len(self.qo_indptr):
            raise MetadataError(
                f"kv_indptr has {len(self.kv_indptr)} entries, qo_indptr {len(self.qo_indptr)}"
            )
        if len(self.kv_last_page_len) != self.num_requests:
            raise MetadataError(
                f"kv_last_page_len has {len(self.kv_last_page_len)} entries for {self.num_requests} requests"
            )
        if len(self.slot_mapping) != self.num_tokens:
            raise MetadataError(
                f"slot_mapping has {len(self.slot_mapping)} entries for {self.num_tokens} tokens"
            )
        if ((self.kv_last_page_len < 1) | (self.kv_last_page_len > self.page_size)).any():
            raise MetadataError(f"kv_last_page_len {self.kv_last_page_len} is not within 1..{self.page_size}")
        if (self.kv_lens < self.q_lens).any():
            raise MetadataError("a request has more new tokens than keys")
        if self.mask is not None:
            self._check_mask(self.mask)
        slots = np.sort(self.slot_mapping)
        if (slots[1:] == slots[:-1]).any():
            slots, counts = np.unique(slots, return_counts=True)
            page, offset = divmod(int(slots[counts.argmax()]), self.page_size)
            raise MetadataError(
                f"slot {offset} of page {page} would be written by {counts.max()} tokens of one step"
            )

    def _check_mask(self, mask: BoolArray) -> None:
        sizes = self.q_lens.astype(np.int64) * self.kv_lens
        if len(mask) != sizes.sum():
            raise MetadataError(
                f"the mask has {len(mask)} entries, the step {sizes.sum()} pairs of token and key"
            )
        own_rows = np.arange(self.num_tokens) - np.repeat(self.qo_indptr[:-1], self.q_lens)
        first_keys = np.repeat(self.kv_lens - self.q_lens, self.q_lens)
        begins = np.repeat(np.cumsum(sizes) - sizes, self.q_lens)
        own_keys = begins + own_rows * np.repeat(self.kv_lens, self.q_lens) + first_keys + own_rows
        blind = np.flatnonzero(~mask[own_keys])
        if len(blind):
            raise MetadataError(f"the mask hides token {blind[0]} of the step from itself")

    def request_mask(self, request: int) -> BoolArray:
        """The mask of one request, [q_len, kv_len]; causal where the step has none."""
        q_len, kv_len = int(self.q_lens[request]), int(self.kv_lens[request])
        if self.mask is None:
            return np.tri(q_len, kv_len, kv_len - q_len, dtype=bool)
        begin = int((self.q_lens[:request].astype(np.int64) * self.kv_lens[:request]).sum())
        return self.mask[begin : begin + q_len * kv_len].reshape(q_len, kv_len)

    @property
    def num_requests(self) -> int:
        """Requests in the step."""
        return len(self.qo_indptr) - 1

    @property
    def num_tokens(self) -> int:
        """New tokens in the step."""
        return len(self.positions)

    @property
    def q_lens(self) -> Int32Array:
        """New tokens of each request, int32 [b]."""
        return _counts(self.qo_indptr)

    @property
    def kv_lens(self) -> Int32Array:
        """Keys of each request, its new tokens' included, int32 [b]."""
        return (_counts(self.kv_indptr) - 1) * np.int32(self.page_size) + self.kv_last_page_len

    @classmethod
    def build(
        cls,
        starts: Sequence[int] | npt.NDArray[np.integer],
        lengths: Sequence[int] | npt.NDArray[np.integer],
        page_tables: Sequence[Int32Array],
        page_size: int,
        masks: Sequence[BoolArray] | None = None,
    ) -> "AttentionMetadata":
        """Lays out a step in which request i computes `lengths[i]` tokens from position `starts[i]`.

        `page_tables[i]` must cover position starts[i] + lengths[i] - 1; what it has beyond that is left out.
        `masks[i]` is bool [lengths[i], starts[i] + lengths[i]], see `mask`.
        Raises MetadataError for an empty or negative range, a table that is too short, or two tokens on one
        slot. O(tokens + pages) in numpy.
        """
        start = np.asarray(starts, dtype=np.int64)
        length = np.asarray(lengths, dtype=np.int64)
        num_pages = _pages_needed(start, length, page_tables, page_size)
        kv_indptr, qo_indptr = _indptr(num_pages), _indptr(length)
        kv_indices = np.concatenate(
            [
                np.empty(0, np.int32),
                *(table[:n] for table, n in zip(page_tables, num_pages.tolist(), strict=True)),
            ],
            dtype=np.int32,
        )
        positions = np.arange(qo_indptr[-1]) + (start - qo_indptr[:-1]).repeat(length)
        page_index, offset = np.divmod(positions, page_size)
        pages = kv_indices[kv_indptr[:-1].repeat(length) + page_index]
        return cls(
            page_size=page_size,
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            kv_last_page_len=((start + length - 1) % page_size + 1).astype(np.int32),
            positions=positions,
            slot_mapping=pages.astype(np.int64) * page_size + offset,
            mask=None if masks is None else np.concatenate([np.empty(0, bool), *map(np.ravel, masks)]),
        )


def _pages_needed(
    start: Int64Array, length: Int64Array, page_tables: Sequence[Int32Array], page_size: int
) -> Int64Array:
    if page_size < 1:
        raise MetadataError(f"page_size is {page_size}; it must be at least 1")
    if not len(start) == len(length) == len(page_tables):
        raise MetadataError(f"{len(start)} starts, {len(length)} lengths and {len(page_tables)} page tables")
    bad = (start < 0) | (length < 1)
    if bad.any():
        i = bad.argmax()
        raise MetadataError(
            f"request {i} of the step: {length[i]} tokens from position {start[i]} are no range"
        )
    needed = (start + length + page_size - 1) // page_size
    held = np.fromiter(map(len, page_tables), np.int64, len(page_tables))
    short = held < needed
    if short.any():
        i = short.argmax()
        raise MetadataError(
            f"request {i} of the step: {start[i] + length[i]} tokens need {needed[i]} pages of {page_size}, "
            f"its page table has {held[i]}"
        )
    return needed


def _indptr(counts: Int64Array) -> Int32Array:
    indptr = np.zeros(len(counts) + 1, np.int32)
    indptr[1:] = counts.cumsum()
    return indptr


def _counts(indptr: Int32Array) -> Int32Array:
    return indptr[1:] - indptr[:-1]


def _check_indptr(name: str, indptr: Int32Array, total: int) -> None:
    if len(indptr) < 1 or indptr[0] != 0 or indptr[-1] != total or (_counts(indptr) < 1).any():
        raise MetadataError(f"{name} must rise from 0 to {total}, got {indptr}")
