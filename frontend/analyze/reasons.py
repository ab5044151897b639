"""Why each token of each prompt was or was not cached: a partition, exact for every request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from .chains import Chains
from .compressed import CompressedCache
from .paths import at_depth, num_seen, num_siblings, owners
from .policies import Replayable
from .touches import Touches
from .trace import Trace
from .types import Float64Array, Int64Array


class Reason(StrEnum):
    """What holds for a token of a prompt; each token has one."""

    CACHED = "cached"
    LAST_TOKEN = "last_token"  # it would be cached, but its logits are wanted
    PREEMPTED = "preempted"
    TWIN_IN_PREFILL = "twin_in_prefill"
    EVICTED = "evicted"
    OTHER_NAMESPACE = "other_namespace"
    SHORTER_THAN_PAGE = "shorter_than_page"
    DIVERGED = "diverged"
    NEVER_SEEN = "never_seen"


EXPLANATIONS = {
    Reason.CACHED: "found in the cache",
    Reason.LAST_TOKEN: "cached too, but computed again: its logits are wanted",
    Reason.PREEMPTED: "computed before the request was preempted, and again after",
    Reason.TWIN_IN_PREFILL: "another request was computing the same tokens at that moment",
    Reason.EVICTED: "was in the cache, and was evicted",
    Reason.OTHER_NAMESPACE: "cached for another namespace (salt, tenant, adapter)",
    Reason.SHORTER_THAN_PAGE: "shared, or shareable, but less than a whole page",
    Reason.DIVERGED: "follows a token at which earlier prompts went on differently",
    Reason.NEVER_SEEN: "no earlier prompt came this far",
}


@dataclass(frozen=True, slots=True, eq=False)
class Reasons:
    """The partition at one size and policy, with what is known about the misses.

    `tokens[reason][r]` (int64) adds up, over the reasons, to `trace.num_tokens[r]`. `diverged_at[r]`: tokens
    that request r shares with the earlier prompts of its namespace. `siblings[r]`: earlier ways on from there.
    `sibling[r]`: the last request that came that far, -1 for none. `evicted_by[r]`: the request that pushed
    out the first evicted block, `idle[r]`: seconds since that block's last use (NaN unknown), `needed[r]`: the
    blocks an LRU cache needs to keep all that r could have shared.
    """

    policy: str
    capacity: int
    hit_blocks: Int64Array
    tokens: dict[Reason, Int64Array]
    diverged_at: Int64Array
    siblings: Int64Array
    sibling: Int64Array
    evicted_by: Int64Array
    idle: Float64Array
    needed: Int64Array

    def totals(self) -> dict[Reason, int]:
        """Tokens of each reason over all requests; adds up to all prompt tokens."""
        return {reason: int(tokens.sum()) for reason, tokens in self.tokens.items()}


def find_reasons(
    trace: Trace, touches: Touches, chains: Chains, policy: str, capacity: int, twins_share: bool = True
) -> Reasons:
    """Replay one cache and give every token its reason. O(blocks) vectorised and O(requests log requests).

    `twins_share`: a request whose prefix is just being computed by another waits for it, as ours do; else
    what it would have shared is missed.
    """
    hits, evicted_by = _replayed(trace, chains, policy, capacity)
    seen = trace.seen_lookups()
    pieces = touches.looked_up(trace)
    twins = np.zeros(len(trace), np.int64) if twins_share else _twins(trace, pieces, hits)
    exact, siblings, sibling = _divergence(trace, seen, _last_user(trace, pieces, seen))
    split = _Partition(trace)
    split.upto(Reason.CACHED, trace.hit_tokens(hits - twins))
    split.upto(Reason.TWIN_IN_PREFILL, trace.hit_tokens(hits))
    split.upto(Reason.PREEMPTED, trace.preempted_tokens)
    split.upto(Reason.EVICTED, trace.hit_tokens(seen))
    elsewhere = _elsewhere(trace, seen)
    split.upto(Reason.OTHER_NAMESPACE, np.where(elsewhere > seen, trace.hit_tokens(elsewhere), 0))
    split.upto(Reason.SHORTER_THAN_PAGE, exact)
    split.upto(Reason.DIVERGED, np.where((siblings > 0) & (exact > 0), _whole(trace), 0))
    if trace.text is None:
        # Behind the last whole page of a prompt there is nothing to compare.
        split.upto(Reason.NEVER_SEEN, _whole(trace))
        split.upto(Reason.SHORTER_THAN_PAGE, trace.num_tokens)
    split.upto(Reason.NEVER_SEEN, trace.num_tokens)
    tokens = split.tokens
    full = tokens[Reason.CACHED] == trace.num_tokens
    tokens[Reason.CACHED] = tokens[Reason.CACHED] - full
    tokens[Reason.LAST_TOKEN] = full.astype(np.int64)
    return Reasons(
        policy=policy,
        capacity=capacity,
        hit_blocks=hits,
        tokens=tokens,
        diverged_at=exact,
        siblings=siblings,
        sibling=sibling,
        evicted_by=evicted_by,
        idle=_idle(trace, pieces, hits),
        needed=_needed(trace, pieces),
    )


class _Partition:
    """Cuts every prompt from its start to its end; a cut never goes back."""

    def __init__(self, trace: Trace) -> None:
        self._end = trace.num_tokens
        self._done = np.zeros(len(trace), dtype=np.int64)
        self.tokens = {reason: np.zeros(len(trace), dtype=np.int64) for reason in Reason}

    def upto(self, reason: Reason, position: Int64Array) -> None:
        """What is left before `position` has this reason."""
        end = np.minimum(np.maximum(self._done, position), self._end)
        self.tokens[reason] = self.tokens[reason] + end - self._done
        self._done = end


def _replayed(trace: Trace, chains: Chains, policy: str, capacity: int) -> tuple[Int64Array, Int64Array]:
    run = Replayable.of(trace, chains)
    cache = CompressedCache(chains, policy, capacity, trace.block_size)
    hits, lost = [], []
    for number, path in enumerate(zip(chains.pieces, run.num_lookups, run.priorities, strict=True)):
        hits.append(cache.request(number, *path))
        lost.append(cache.lost_at)
    return np.array(hits, dtype=np.int64), np.array(lost, dtype=np.int64)


def _whole(trace: Trace) -> Int64Array:
    """Tokens of each prompt that the trace says something about."""
    if trace.text is not None:
        return trace.num_tokens
    return np.minimum(trace.num_tokens, trace.num_lookup_blocks * trace.block_size)


def _divergence(
    trace: Trace, seen: Int64Array, last_user: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Shared tokens of each prompt, the ways earlier ones went on, and one that came that far (-1: none).

    Token by token where there is text, by the block elsewhere.
    """
    roots = trace.namespace.codes
    if trace.text is None:
        siblings = num_siblings(trace.blocks, trace.indptr, seen, roots)
        return trace.hit_tokens(seen), siblings, last_user
    text = trace.text
    numbers = text.numbers
    exact = np.minimum(num_seen(numbers, text.indptr), trace.num_tokens)
    siblings = num_siblings(numbers, text.indptr, exact, roots)
    where = at_depth(numbers, text.indptr, exact, roots)
    first = owners(numbers, text.indptr)
    return exact, siblings, np.where(exact > 0, first[np.maximum(where, 0)], -1)


def _last_user(trace: Trace, pieces: Touches, seen: Int64Array) -> Int64Array:
    """The request that last used the deepest seen block of each prompt; -1 where nothing was seen."""
    users = np.full(len(trace), -1, dtype=np.int64)
    deepest = pieces.end == seen[pieces.request]
    users[pieces.request[deepest]] = pieces.before[deepest]
    return users


def _elsewhere(trace: Trace, seen: Int64Array) -> Int64Array:
    """Leading blocks of each prompt that any namespace had before; `seen` where there is one namespace."""
    if trace.content_of_block is None:
        return seen
    content = trace.content_of_block[trace.blocks]
    owner = np.repeat(np.arange(len(trace)), np.diff(trace.indptr))
    first = np.zeros(int(content.max()) + 1 if len(content) else 0, dtype=np.int64)
    first[content[::-1]] = owner[::-1]
    known = np.bincount(owner[first[content] < owner], minlength=len(trace)).astype(np.int64)
    return np.minimum(known, trace.num_lookup_blocks)


def _twins(trace: Trace, pieces: Touches, hits: Int64Array) -> Int64Array:
    """Hit blocks at the end of each match whose only user so far is still in prefill."""
    arrived = trace.time[pieces.request]
    until = trace.first_token_time[pieces.before]
    busy = np.isfinite(until) & (arrived < until) & (trace.time[pieces.before] <= arrived)
    first_use = (
        trace.blocks[trace.indptr[pieces.request] + pieces.start] >= trace.first_new_block()[pieces.before]
    )
    blocks = np.clip(hits[pieces.request] - pieces.start, 0, pieces.end - pieces.start)
    return np.bincount(
        pieces.request, weights=np.where(busy & first_use, blocks, 0), minlength=len(trace)
    ).astype(np.int64)


def _idle(trace: Trace, pieces: Touches, hits: Int64Array) -> Float64Array:
    """Seconds between the last use of the first evicted block and the request that missed it."""
    idle = np.full(len(trace), np.nan)
    missed = hits[pieces.request]
    here = (pieces.start <= missed) & (missed < pieces.end)
    request, before = pieces.request[here], pieces.before[here]
    idle[request] = trace.time[request] - trace.time[before]
    return idle


def _needed(trace: Trace, pieces: Touches) -> Int64Array:
    """Blocks an LRU cache needs to hold all that each prompt shares; 0 where it shares nothing."""
    needed = np.zeros(len(trace), dtype=np.int64)
    np.maximum.at(needed, pieces.request, pieces.distance + pieces.end - pieces.start)
    return needed
