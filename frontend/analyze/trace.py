"""A trace in columns: what every input becomes before it is analysed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .labels import Labels
from .paths import first_new, num_seen
from .types import Float64Array, Int32Array, Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class TokenText:
    """The tokens behind a trace's blocks, where the input has them.

    `tokens` (int32) are those of all stored sequences one after the other, request r's at
    `indptr[r]:indptr[r + 1]`, its prompt first; `numbers` are their prefixes, token by token (see `paths`).
    `decode` turns ids into text for people.
    """

    tokens: Int32Array
    numbers: Int32Array
    indptr: Int64Array
    tokenizer: str
    decode: Any

    def of(self, request: int) -> Int32Array:
        return self.tokens[self.indptr[request] : self.indptr[request + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order in which they are looked up.

    A block is `block_size` tokens together with everything before them: equal numbers are equal prefixes, in
    the same namespace. Blocks are numbered 0, 1, 2, ... in the order of their first appearance. Request r
    looks up its first `num_lookup_blocks[r]` blocks and leaves `blocks[indptr[r]:indptr[r + 1]]` in the cache
    (longer where its answer is known to be cached as well).

    `time` and `first_token_time` are seconds from the first request (NaN unknown), `reported_cached` is what a
    server said (-1 unknown), `preempted_tokens` what it computed again. `has_one_clock` is False where times of
    different sessions can't be compared. `content_of_block` numbers blocks
    without regard to the namespace; None when there is one namespace.
    """

    name: str
    format: str
    block_size: int
    ids: tuple[str, ...]
    time: Float64Array
    first_token_time: Float64Array
    end_time: Float64Array
    num_tokens: Int64Array
    num_output_tokens: Int64Array
    reported_cached: Int64Array
    preempted_tokens: Int64Array
    priority: Int32Array
    namespace: Labels
    tenant: Labels
    model: Labels
    session: Labels
    call_site: Labels
    indptr: Int64Array
    blocks: Int32Array
    num_lookup_blocks: Int64Array
    num_distinct_blocks: int
    content_of_block: Int32Array | None
    text: TokenText | None
    outputs_cached: bool
    has_one_clock: bool = True
    skipped: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def path(self, request: int) -> Int32Array:
        """The blocks a request leaves in the cache, root first."""
        return self.blocks[self.indptr[request] : self.indptr[request + 1]]

    @property
    def num_lookups(self) -> int:
        """Blocks looked up by all requests together."""
        return int(self.num_lookup_blocks.sum())

    @property
    def total_tokens(self) -> int:
        """Prompt tokens of all requests together."""
        return int(self.num_tokens.sum())

    @property
    def has_times(self) -> bool:
        return bool(np.isfinite(self.time).any())

    def hit_tokens(self, hit_blocks: Int64Array) -> Int64Array:
        """Tokens in the first `hit_blocks[r]` blocks of each prompt; the last block may be partly full."""
        return np.minimum(self.num_tokens, hit_blocks * self.block_size)

    def first_new_block(self) -> Int64Array:
        """For each request the number that the next new block would have gotten: blocks below it are old."""
        return first_new(self.blocks, self.indptr)

    def seen_blocks(self) -> Int64Array:
        """How many leading blocks of each request's path an earlier request had."""
        return num_seen(self.blocks, self.indptr)

    def seen_lookups(self) -> Int64Array:
        """The same of what is looked up: the hits of a cache that forgets nothing."""
        return np.minimum(self.seen_blocks(), self.num_lookup_blocks)
