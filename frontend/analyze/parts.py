"""One prompt, from its start to its end: which stretch was cached, and what is the matter with the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .reasons import EXPLANATIONS, Reason, Reasons
from .trace import Trace

_SHOWN_TOKENS = 24
_ORDER = (
    Reason.CACHED,
    Reason.LAST_TOKEN,
    Reason.TWIN_IN_PREFILL,
    Reason.PREEMPTED,
    Reason.EVICTED,
    Reason.OTHER_NAMESPACE,
)


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Tokens `start` .. `end` of a prompt, their reason, and what is known about it, in words."""

    start: int
    end: int
    reason: Reason
    detail: str


def prompt_parts(trace: Trace, reasons: Reasons, request: int) -> list[PromptPart]:
    """The partition of one prompt, in order."""
    behind = (Reason.SHORTER_THAN_PAGE, Reason.DIVERGED, Reason.NEVER_SEEN)
    order = (*_ORDER, *behind) if trace.text is not None else (*_ORDER, *behind[1:], behind[0])
    parts, start = [], 0
    for reason in order:
        count = int(reasons.tokens[reason][request])
        if count:
            detail = _detail(trace, reasons, request, reason)
            parts.append(PromptPart(start, start + count, reason, detail))
            start += count
    return parts


def divergence_texts(trace: Trace, reasons: Reasons, request: int) -> tuple[str, str, str] | None:
    """What both prompts have before they part, and how each goes on; None without text or a sibling."""
    text, sibling = trace.text, int(reasons.sibling[request])
    if text is None or sibling < 0:
        return None
    at = int(reasons.diverged_at[request])
    mine, other = text.of(request), text.of(sibling)
    before = mine[max(0, at - _SHOWN_TOKENS) : at]
    parts = (before, mine[at : at + _SHOWN_TOKENS], other[at : at + _SHOWN_TOKENS])
    shared, own, others = (str(text.decode(part.tolist(), skip_special=False)) for part in parts)
    return shared, own, others


def explained(trace: Trace, reasons: Reasons, request: int) -> dict[str, Any]:
    """The same as JSON-ready values."""
    texts = divergence_texts(trace, reasons, request)
    sibling = int(reasons.sibling[request])
    return {
        "id": trace.ids[request],
        "prompt_tokens": int(trace.num_tokens[request]),
        "policy": reasons.policy,
        "size_tokens": reasons.capacity * trace.block_size,
        "reported_cached_tokens": int(trace.reported_cached[request])
        if trace.reported_cached[request] >= 0
        else None,
        "parts": [
            {"start": part.start, "end": part.end, "reason": part.reason.value, "detail": part.detail}
            for part in prompt_parts(trace, reasons, request)
        ],
        "diverged_from": trace.ids[sibling] if sibling >= 0 else None,
        "texts": None if texts is None else {"shared": texts[0], "this": texts[1], "other": texts[2]},
    }


def find_request(trace: Trace, name: str) -> int | None:
    """A request by its id, or as #n (the n-th, from 1)."""
    if name in trace.ids:
        return trace.ids.index(name)
    if name.startswith("#") and name[1:].isdigit() and 1 <= int(name[1:]) <= len(trace):
        return int(name[1:]) - 1
    return None


def _detail(trace: Trace, reasons: Reasons, request: int, reason: Reason) -> str:
    if reason is Reason.EVICTED:
        return ", ".join(_evicted(trace, reasons, request))
    if reason is Reason.DIVERGED:
        siblings = int(reasons.siblings[request])
        ways = "one other way" if siblings == 1 else f"{siblings:,} other ways"
        return f"at token {int(reasons.diverged_at[request]):,}, where earlier prompts went {ways}"
    if reason is Reason.OTHER_NAMESPACE:
        own = trace.namespace.of(request) or "the default one"
        return f"this request is in namespace {own}"
    return EXPLANATIONS[reason]


def _evicted(trace: Trace, reasons: Reasons, request: int) -> Iterator[str]:
    by = int(reasons.evicted_by[request])
    if by < 0:
        yield f"was computed before, but the prompt is larger than the cache of {reasons.capacity:,} blocks"
    else:
        yield f"evicted by {reasons.policy} to make room for request {trace.ids[by]}"
        ago = trace.time[request] - trace.time[by]
        yield (
            f"{ago:,.1f} s and {request - by:,} requests ago"
            if ago == ago
            else f"{request - by:,} requests ago"
        )
        idle = reasons.idle[request]
        if idle == idle:
            yield f"last used {idle:,.1f} s ago"
    needed = int(reasons.needed[request]) * trace.block_size
    yield f"an LRU cache of {needed:,} tokens would have kept it"
