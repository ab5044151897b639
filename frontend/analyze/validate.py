"""Prediction against what a server says: request by request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from trunkline.radix.config import RadixConfig
from trunkline.radix.lease import Lease
from trunkline.radix.pages import PagePool
from trunkline.radix.prefix_cache import PrefixCache

from .errors import AnalyzeError
from .progress import Listener, Silent
from .replay import replay
from .trace import TokenText, Trace
from .types import Int64Array

_REPORT_EVERY = 64


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """Predicted and reported cached tokens of the requests with a report (int64, in the trace's order).

    `tolerance`: by so many tokens the prediction may lie below the report because the input doesn't tell more
    (hashes of whole pages; with tokens it is 0).
    """

    ids: tuple[str, ...]
    prompt_tokens: Int64Array
    predicted: Int64Array
    reported: Int64Array
    tolerance: int

    @property
    def agrees(self) -> Int64Array:
        """1 for each request whose report is what was predicted, else 0."""
        above = self.reported - self.predicted
        return ((above >= 0) & (above <= self.tolerance)).astype(np.int64)

    @property
    def num_agreeing(self) -> int:
        return int(self.agrees.sum())

    def differences(self) -> Iterator[tuple[str, int, int, int]]:
        """(id, prompt tokens, predicted, reported) of the others, the largest difference first."""
        order = np.argsort(-np.abs(self.reported - self.predicted), kind="stable")
        for index in order.tolist():
            if not self.agrees[index]:
                counts = (self.prompt_tokens[index], self.predicted[index], self.reported[index])
                prompt, predicted, reported = map(int, counts)
                yield self.ids[index], prompt, predicted, reported


def validate(
    trace: Trace, policy: str | None = None, size_tokens: int | None = None, progress: Listener | None = None
) -> Validation:
    """Replay a log through the `PrefixCache` that serves and compare with the `cached` of its lines.

    With tokens the replay is by the token, with requests that overlap in time; with hashes of pages it is by
    the page, one request after the other. Size and policy are the log's own unless given; without either the
    cache is as large as the log needs. Raises AnalyzeError when the input has no reported counts.
    """
    known = np.flatnonzero(trace.reported_cached >= 0)
    if not len(known):
        raise AnalyzeError(
            f"{trace.name}: no record says how many tokens were cached, so there is nothing to compare"
        )
    policy = policy or str(trace.server.get("eviction_policy", "lru"))
    size = size_tokens or trace.server.get("kv_tokens")
    if trace.text is not None:
        predicted = predict_tokens(trace, trace.text, policy, size, progress)
        tolerance = 0
    else:
        capacity = max(1, int(size) // trace.block_size) if size else max(1, trace.num_distinct_blocks)
        hits = replay(trace, policy, capacity, progress).hit_blocks
        predicted = (
            np.minimum(trace.hit_tokens(hits), trace.num_tokens - 1) // trace.block_size * trace.block_size
        )
        tolerance = trace.block_size - 1
    return Validation(
        ids=tuple(trace.ids[request] for request in known.tolist()),
        prompt_tokens=trace.num_tokens[known],
        predicted=predicted[known],
        reported=trace.reported_cached[known],
        tolerance=tolerance,
    )


def predict_tokens(
    trace: Trace, text: TokenText, policy: str, size_tokens: int | None, progress: Listener | None = None
) -> Int64Array:
    """Cached tokens of each request, as our server counts them.

    A request's prompt can be shared from its arrival on, since others wait for what is being computed; its
    answer from its end on. Between the two it holds its pages.
    """
    hear = (progress or Silent()).stage("replaying the log", len(trace))
    page = trace.block_size
    lengths = np.diff(text.indptr)
    pages = int(size_tokens) // page if size_tokens else int((-(-lengths // page)).sum()) + 1
    cache = PrefixCache(PagePool(max(1, pages), page), RadixConfig(page_size=page, eviction_policy=policy))
    cached = np.zeros(len(trace), dtype=np.int64)
    running: list[tuple[float, int, Lease]] = []
    spaces = {name: ("default", "") if not name else ("salt", name) for name in trace.namespace.names}
    for request in range(len(trace)):
        arrived, end = trace.time[request], trace.end_time[request]
        while running and (not np.isfinite(arrived) or running[0][0] <= arrived):
            _finish(cache, text, *heappop(running)[1:])
        prompt = text.of(request)[: trace.num_tokens[request]]
        match = cache.match(prompt, spaces[trace.namespace.of(request)])
        cached[request] = match.num_tokens
        lease = cache.acquire(match, int(trace.priority[request]))
        while not cache.reserve(lease, len(prompt)) and running:
            _finish(cache, text, *heappop(running)[1:])
        fitting = min(len(prompt), len(lease.pages) * page)
        cache.copied(lease)
        cache.commit(lease, prompt[:fitting])
        heappush(running, (float(end) if np.isfinite(end) else -1.0, request, lease))
        if request % _REPORT_EVERY == 0:
            hear(request)
    return cached


def _finish(cache: PrefixCache, text: TokenText, request: int, lease: Lease) -> None:
    """The answer is there: it can be shared from now on, as far as there is room for it."""
    tokens = text.of(request)
    if cache.reserve(lease, len(tokens)):
        cache.commit(lease, tokens)
    cache.release(lease)
