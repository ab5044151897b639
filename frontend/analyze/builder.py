"""Collects requests one by one and turns them into a `Trace`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .canonical import number_blocks
from .errors import InputError
from .labels import LabelBuilder
from .lines import BadRecord, Skips
from .trace import TokenText, Trace
from .types import Float64Array, Int32Array, Int64Array

NAN = float("nan")
LABELS = ("namespace", "tenant", "model", "session", "call_site")
MAX_TOKENS = 2**40


@dataclass(frozen=True, slots=True)
class Record:
    """One request as a reader found it; `blocks` are the names of stored blocks, or `tokens` the stored tokens.

    `num_lookup_blocks` is None where the whole path is looked up. Times are seconds on the reader's own clock.
    """

    id: str
    num_tokens: int
    num_output_tokens: int = 0
    time: float = NAN
    first_token_time: float = NAN
    end_time: float = NAN
    blocks: NDArray[Any] | None = None
    num_lookup_blocks: int | None = None
    tokens: Int32Array | None = None
    reported_cached: int = -1
    preempted_tokens: int = 0
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


class TraceBuilder:
    """`add` records, then `build`. Ids that come again get a number; requests out of order are sorted."""

    def __init__(self, name: str, format: str, block_size: int, skips: Skips) -> None:
        self.name = name
        self.format = format
        self.block_size = block_size
        self.skips = skips
        self.notes: list[str] = []
        self.has_one_clock = True
        self.outputs_cached = False
        self.server: dict[str, Any] = {}
        self._records: list[Record] = []
        self._labels = {name: LabelBuilder() for name in LABELS}
        self._used_ids: dict[str, int] = {}
        self._num_reused_ids = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def has_tokens(self) -> bool:
        """Whether the requests so far came with their tokens."""
        return bool(self._records) and self._records[0].tokens is not None

    def add(self, record: Record) -> None:
        """Take one more request. Raises BadRecord for one whose numbers can't be."""
        if not 0 < record.num_tokens < MAX_TOKENS:
            raise BadRecord(f"a prompt of {record.num_tokens} tokens")
        for name, builder in self._labels.items():
            builder.add(record.labels.get(name, ""))
        self._records.append(record)

    def build(self, tokenizer: str = "", decode: Any = None) -> Trace:
        """The trace. Raises InputError when no request is left."""
        if not self._records:
            why = "; ".join(
                f"line {skip['first_line']}: {skip['reason']}" for skip in self.skips.describe()[:3]
            )
            raise InputError(f"{self.name}: no request could be read{f' ({why})' if why else ''}")
        order = self._order()
        records = [self._records[index] for index in order.tolist()]
        labels = {name: builder.build(order) for name, builder in self._labels.items()}
        stored, indptr = _joined(records)
        roots = labels["namespace"].codes
        no_roots = None if len(labels["namespace"].names) == 1 else np.zeros(len(records), dtype=np.int32)
        text, names, content_names = None, stored, stored
        if self.has_tokens:
            tokens = stored.astype(np.int32)
            numbers, names, block_indptr = number_pages(tokens, indptr, roots, self.block_size)
            text = TokenText(tokens, numbers, indptr, tokenizer, decode)
            if no_roots is not None:
                _, content_names, _ = number_pages(tokens, indptr, no_roots, self.block_size)
            indptr = block_indptr
        blocks, num_distinct = number_blocks(names, indptr, roots)
        content: Int32Array | None = None
        if no_roots is not None:
            content = np.zeros(num_distinct, dtype=np.int32)
            content[blocks], _ = number_blocks(content_names, indptr, no_roots)
        times = _column(records, "time")
        begin = float(np.nanmin(times)) if np.isfinite(times).any() and self.has_one_clock else 0.0
        lookups = _lookups(records, indptr, self.block_size)
        return Trace(
            name=self.name,
            format=self.format,
            block_size=self.block_size,
            ids=self._unique_ids(records),
            time=times - begin,
            first_token_time=_column(records, "first_token_time") - begin,
            end_time=_column(records, "end_time") - begin,
            num_tokens=_counts(records, "num_tokens"),
            num_output_tokens=_counts(records, "num_output_tokens"),
            reported_cached=_counts(records, "reported_cached"),
            preempted_tokens=_counts(records, "preempted_tokens"),
            priority=_counts(records, "priority").astype(np.int32),
            indptr=indptr,
            blocks=blocks,
            num_lookup_blocks=lookups,
            num_distinct_blocks=num_distinct,
            content_of_block=content,
            text=text,
            outputs_cached=self.outputs_cached,
            has_one_clock=self.has_one_clock,
            skipped=tuple(self.skips.describe()),
            notes=tuple(self.notes) + self._own_notes(),
            server=self.server,
            **labels,
        )

    def _order(self) -> Int64Array:
        times = _column(self._records, "time")
        if not self.has_one_clock or not np.isfinite(times).all():
            return np.arange(len(times), dtype=np.int64)
        late = int(np.count_nonzero(np.diff(times) < 0))
        if late:
            self.notes.append(f"{late:,} requests are earlier than the one before them; sorted by time")
        return np.argsort(times, kind="stable").astype(np.int64)

    def _unique_ids(self, records: list[Record]) -> tuple[str, ...]:
        ids = []
        for record in records:
            seen = self._used_ids.get(record.id, 0)
            self._used_ids[record.id] = seen + 1
            self._num_reused_ids += seen > 0
            ids.append(f"{record.id}#{seen + 1}" if seen else record.id)
        return tuple(ids)

    def _own_notes(self) -> tuple[str, ...]:
        if not self._num_reused_ids:
            return ()
        return (f"{self._num_reused_ids:,} request ids are used again; the later ones carry #2, #3, ...",)


def number_pages(
    tokens: Int32Array, indptr: Int64Array, root_of: Int32Array, page_size: int
) -> tuple[Int32Array, Int32Array, Int64Array]:
    """Numbers of all prefixes of token sequences; of those that end a whole page; and the indptr of the latter."""
    numbers, _ = number_blocks(tokens, indptr, root_of)
    pages = np.diff(indptr) // page_size
    page_indptr = np.concatenate([[0], np.cumsum(pages)]).astype(np.int64)
    place = np.arange(page_indptr[-1]) - np.repeat(page_indptr[:-1], pages)
    ends = np.repeat(indptr[:-1], pages) + (place + 1) * page_size - 1
    return numbers, numbers[ends], page_indptr


def _joined(records: list[Record]) -> tuple[NDArray[Any], Int64Array]:
    parts = [record.blocks if record.tokens is None else record.tokens for record in records]
    known = [part if part is not None else np.zeros(0, np.int64) for part in parts]
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in known])]).astype(np.int64)
    return np.concatenate(known), indptr


def _lookups(records: list[Record], indptr: Int64Array, block_size: int) -> Int64Array:
    """Blocks each prompt looks up: all of its path, what the record says, or its whole pages of tokens."""
    stored = np.diff(indptr)
    given = [
        record.num_tokens // block_size if record.tokens is not None else record.num_lookup_blocks
        for record in records
    ]
    wanted = np.array([count if count is not None else MAX_TOKENS for count in given], dtype=np.int64)
    return np.minimum(stored, wanted)


def _column(records: Iterable[Record], name: str) -> Float64Array:
    return np.array([getattr(record, name) for record in records], dtype=np.float64)


def _counts(records: Iterable[Record], name: str) -> Int64Array:
    return np.array([getattr(record, name) for record in records], dtype=np.int64)
