"""What would help, each with its gain measured by running the changed trace or cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trunkline.radix.eviction import POLICIES

from .canonical import number_blocks
from .chains import Chains
from .reasons import Reason, Reasons
from .touches import LruCurve
from .trace import Trace
from .types import Int64Array
from .volatile import find_fragments, lru_hit_tokens

ORDER_WINDOW_SECONDS = 60.0
ORDER_WINDOW_REQUESTS = 64
_WORTH = 0.002  # of all prompt tokens; less is not said


@dataclass(frozen=True, slots=True)
class Advice:
    """One change and the prompt tokens that need not be computed any more with it.

    `kind` is volatile, namespace, memory, page, policy, order or twins. `gain_tokens` is measured in this trace
    at the analysed size, `share` is its part of all prompt tokens.
    """

    kind: str
    title: str
    detail: str
    gain_tokens: int
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """What the advice is drawn from; `policy_tokens` are hit tokens of all policies at the same size."""

    trace: Trace
    chains: Chains
    reasons: Reasons
    curve: LruCurve
    policy_tokens: Mapping[str, int]


def advise(situation: Situation) -> list[Advice]:
    """All advice that is worth something, the largest gain first."""
    total = situation.trace.total_tokens
    found = [
        replace(advice, share=advice.gain_tokens / total)
        for make in (_volatile, _namespaces, _memory, _pages, _policies, _order, _twins)
        for advice in make(situation)
    ]
    worth = [advice for advice in found if advice.share >= _WORTH]
    return sorted(worth, key=lambda advice: (-advice.gain_tokens, advice.kind, advice.title))


def _volatile(it: Situation) -> Iterator[Advice]:
    before = int(lru_hit_tokens(it.trace, it.reasons.capacity).sum()) if it.trace.text is not None else 0
    for fragment in find_fragments(it.trace, it.reasons):
        gain = int(lru_hit_tokens(fragment.moved, it.reasons.capacity).sum()) - before
        is_list = fragment.kind == "list order"
        what = "a list whose lines change order" if is_list else f"a {fragment.kind} that changes"
        how = "keep its lines in one order" if is_list else "move it behind what is the same"
        examples = ", ".join(repr(example) for example in fragment.examples)
        yield Advice(
            "volatile",
            f"{what.capitalize()} at token {fragment.position:,}: {how}",
            f"In {fragment.num_requests:,} prompts; such as {examples}. Measured by doing so in all of them.",
            gain,
            0.0,
        )


def _namespaces(it: Situation) -> Iterator[Advice]:
    elsewhere = it.reasons.tokens[Reason.OTHER_NAMESPACE]
    requests = int(np.count_nonzero(elsewhere))
    if requests:
        yield Advice(
            "namespace",
            f"{len(it.trace.namespace.names):,} namespaces (salts, tenants, adapters) compute the same tokens",
            f"{requests:,} prompts found in another namespace what they missed in their own. Use one salt for"
            " each circle of trust, not for each request or user; what is public may have none.",
            int(elsewhere.sum()),
            0.0,
        )


def _memory(it: Situation) -> Iterator[Advice]:
    trace, size = it.trace, it.reasons.capacity
    now = it.curve.at(size)[1]
    best = int(it.curve.tokens[-1])
    twice = it.curve.at(2 * size)[1] - now
    if now >= best or (not twice and best - now < _WORTH * trace.total_tokens):
        return
    enough = int(np.searchsorted(it.curve.tokens, now + 0.9 * (best - now)))
    evicted = int(it.reasons.tokens[Reason.EVICTED].sum())
    yield Advice(
        "memory",
        f"{enough * trace.block_size:,} tokens of cache instead of {size * trace.block_size:,}",
        f"{evicted:,} tokens were cached and evicted. This size brings back nine tenths of what size can;"
        f" twice the present size brings {twice:,} tokens.",
        it.curve.at(enough)[1] - now,
        0.0,
    )


def _pages(it: Situation) -> Iterator[Advice]:
    short = it.reasons.tokens[Reason.SHORTER_THAN_PAGE]
    known = it.trace.text is not None
    gain = int(short.sum()) if known else 0
    if gain:
        yield Advice(
            "page",
            f"Prompts share less than a whole page of {it.trace.block_size} tokens",
            f"{int(np.count_nonzero(short)):,} prompts go on like an earlier one inside a page. Smaller pages help,"
            " or a cache that shares by the token, as Trunkline's does; or put shared text first.",
            gain,
            0.0,
        )


def _policies(it: Situation) -> Iterator[Advice]:
    now = it.policy_tokens.get(it.reasons.policy, 0)
    known = {name: tokens for name, tokens in it.policy_tokens.items() if name in POLICIES}
    better = max(known, key=lambda name: (known[name], name))
    if known[better] > now:
        yield Advice(
            "policy",
            f"Evict by {better} instead of {it.reasons.policy}",
            "Of the policies that the cache knows this one finds most at the analysed size.",
            known[better] - now,
            0.0,
        )


def _order(it: Situation) -> Iterator[Advice]:
    trace, size = it.trace, it.reasons.capacity
    if not it.reasons.tokens[Reason.EVICTED].any() or not trace.has_one_clock:
        return
    if np.isfinite(trace.time).all() and float(trace.time.max()) > ORDER_WINDOW_SECONDS:
        window = (trace.time / ORDER_WINDOW_SECONDS).astype(np.int64)
        said = f"in each minute ({ORDER_WINDOW_SECONDS:.0f} s)"
    else:
        window = np.arange(len(trace)) // ORDER_WINDOW_REQUESTS
        said = f"among each {ORDER_WINDOW_REQUESTS} requests"
    keys = sorted(range(len(trace)), key=lambda r: (int(window[r]), it.chains.pieces[r], r))
    ordered = in_order(trace, np.array(keys, dtype=np.int64))
    gain = int(lru_hit_tokens(ordered, size).sum()) - it.curve.at(size)[1]
    yield Advice(
        "order",
        f"Run requests with a common prefix one after the other {said}",
        "Measured with the requests of each window sorted by prefix; lpm and dfs-weight of the scheduler do"
        " so for what is waiting.",
        gain,
        0.0,
    )


def _twins(it: Situation) -> Iterator[Advice]:
    tokens = it.reasons.tokens[Reason.TWIN_IN_PREFILL]
    if tokens.any():
        yield Advice(
            "twins",
            "Let a request wait for a prefix that another one is computing",
            f"{int(np.count_nonzero(tokens)):,} prompts arrived while an equal prefix was in prefill."
            " Trunkline's scheduler waits; a server that doesn't computes it twice.",
            int(tokens.sum()),
            0.0,
        )


def in_order(trace: Trace, order: Int64Array) -> Trace:
    """What the cache sees of the trace when its requests come in another order (no text, no ids)."""
    lengths = np.diff(trace.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    gather = np.repeat(trace.indptr[order] - indptr[:-1], lengths) + np.arange(indptr[-1])
    roots = trace.namespace.codes[order]
    blocks, count = number_blocks(trace.blocks[gather], indptr, roots)
    return replace(
        trace,
        indptr=indptr,
        blocks=blocks,
        num_distinct_blocks=count,
        num_tokens=trace.num_tokens[order],
        num_lookup_blocks=trace.num_lookup_blocks[order],
        content_of_block=None,
        text=None,
    )
