"""The same figures for parts of the traffic: by tenant, model, session, call site, time; and who shares with whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from .labels import Labels
from .reasons import Reason, Reasons
from .touches import Touches
from .trace import Trace
from .types import Int64Array

DIMENSIONS = ("tenant", "namespace", "model", "session", "call_site")
MAX_ROWS = 200
_MAX_BUCKETS = 120
_BUCKET_SECONDS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400, 7 * 86_400)
_HISTOGRAM_BINS = 24


def breakdown(trace: Trace, reasons: Reasons) -> dict[str, list[dict[str, Any]]]:
    """For each label that tells requests apart a table, the largest rows first."""
    tables = {}
    for name in DIMENSIONS:
        labels: Labels = getattr(trace, name)
        if labels.is_informative:
            tables[name] = _rows(labels, trace, reasons)
    return tables


def time_axis(trace: Trace, reasons: Reasons) -> list[dict[str, Any]]:
    """Requests and tokens by reason in equal stretches of time; empty where times are unknown."""
    if not np.isfinite(trace.time).all() or not trace.has_one_clock:
        return []
    span = float(trace.time.max())
    width = next((w for w in _BUCKET_SECONDS if span / w <= _MAX_BUCKETS), span / _MAX_BUCKETS)
    bucket = (trace.time / width).astype(np.int64)
    count = int(bucket.max()) + 1
    requests = np.bincount(bucket, minlength=count).tolist()
    totals = _sums(bucket, trace.num_tokens, count)
    parts = {
        reason: _sums(bucket, tokens, count) for reason, tokens in reasons.tokens.items() if tokens.any()
    }
    return [
        {
            "start_s": index * width,
            "width_s": width,
            "requests": requests[index],
            "prompt_tokens": int(totals[index]),
            "tokens": {reason.value: int(sums[index]) for reason, sums in parts.items()},
        }
        for index in range(count)
    ]


def sharing(trace: Trace, touches: Touches, reasons: Reasons) -> dict[str, int] | None:
    """Hit tokens whose last user was the same session, and another one; None where sessions are unknown."""
    if not trace.session.is_informative:
        return None
    found = touches.looked_up(trace)
    hits = reasons.hit_blocks[found.request]
    end = np.clip(hits, found.start, found.end) * trace.block_size
    limit = trace.num_tokens[found.request]
    tokens = np.minimum(limit, end) - np.minimum(limit, found.start * trace.block_size)
    codes = trace.session.codes
    same = codes[found.request] == codes[found.before]
    return {
        "hit_tokens": int(tokens.sum()),
        "within_session": int(tokens[same].sum()),
        "across_sessions": int(tokens[~same].sum()),
    }


def divergence_histogram(trace: Trace, reasons: Reasons) -> list[dict[str, Any]]:
    """How far prompts go along with earlier ones: requests by the power of two of the shared tokens."""
    shared = reasons.diverged_at
    bins = np.where(shared > 0, np.log2(np.maximum(shared, 1)).astype(np.int64) + 1, 0)
    bins = np.minimum(bins, _HISTOGRAM_BINS)
    count = int(bins.max()) + 1 if len(bins) else 0
    requests = np.bincount(bins, minlength=count)
    behind = _sums(bins, trace.num_tokens - shared, count)
    return [
        {
            "from_tokens": 0 if index == 0 else 2 ** (index - 1),
            "below_tokens": 1 if index == 0 else 2**index,
            "requests": int(requests[index]),
            "tokens_behind": int(behind[index]),
        }
        for index in range(count)
    ]


def _rows(labels: Labels, trace: Trace, reasons: Reasons) -> list[dict[str, Any]]:
    count = len(labels.names)
    tokens = _sums(labels.codes, trace.num_tokens, count)
    requests = np.bincount(labels.codes, minlength=count)
    parts = {
        reason: _sums(labels.codes, part, count) for reason, part in reasons.tokens.items() if part.any()
    }
    order = np.lexsort((np.arange(count), -tokens))[:MAX_ROWS].tolist()
    return [
        {
            "name": labels.names[index] or "(none)",
            "requests": int(requests[index]),
            "prompt_tokens": int(tokens[index]),
            "cached_tokens": int(parts[Reason.CACHED][index]) if Reason.CACHED in parts else 0,
            "tokens": {reason.value: int(sums[index]) for reason, sums in parts.items()},
        }
        for index in order
    ]


def _sums(groups: Any, values: Int64Array, count: int) -> Int64Array:
    """Exact sums of integers by group (bincount adds floats, exact below 2**53)."""
    return np.bincount(groups, weights=values, minlength=count).astype(np.int64)
