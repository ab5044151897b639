"""Prediction against what a server says: request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from trunkline.radix.config import RadixConfig
from trunkline.radix.hashing import Namespace
from trunkline.radix.lease import Lease
from trunkline.radix.pages import PagePool
from trunkline.radix.prefix_cache import PrefixCache

from .errors import AnalyzeError
from .progress import Listener, Silent
from .replay import replay
from .trace import TokenText, Trace
from .types import Int32Array, Int64Array

_REPORT_EVERY = 64
_AT_ONCE = float("-inf")
# First tokens of one step arrive within this time of each other; no step is shorter.
SAME_STEP_SECONDS = 0.002


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

    Whole pages of a prompt can be shared from its arrival on, since others wait for what is being computed. A
    part of a page can be shared when it was computed before the step that computes the other request: a prompt
    from its first token on, an answer from its end on. Between arrival and end a request holds its pages.
    """
    hear = (progress or Silent()).stage("replaying the log", len(trace))
    server = _Server(trace, text, policy, size_tokens)
    cached = np.zeros(len(trace), dtype=np.int64)
    for request in range(len(trace)):
        cached[request] = server.arrive(request)
        if request % _REPORT_EVERY == 0:
            hear(request)
    return cached


class _Server:
    """What requests can share at a moment: all that was begun, by whole pages, and what is computed, by tokens."""

    def __init__(self, trace: Trace, text: TokenText, policy: str, size_tokens: int | None) -> None:
        page = trace.block_size
        needed = int((-(-np.diff(text.indptr) // page)).sum()) + 1
        pages = max(1, int(size_tokens) // page) if size_tokens else needed
        self._page = page
        self._begun = _Holder(pages, page, policy)
        self._computed = _Holder(pages, page, policy)
        self._trace = trace
        self._text = text
        self._spaces = {
            name: ("default", "") if not name else ("salt", name) for name in trace.namespace.names
        }
        self._to_come: list[
            tuple[float, int, bool]
        ] = []  # (time, request, is its end): first tokens and ends

    def arrive(self, request: int) -> int:
        """Look a request up as of the step that computes it; returns its cached tokens."""
        trace = self._trace
        first, end = float(trace.first_token_time[request]), float(trace.end_time[request])
        self._advance(first - SAME_STEP_SECONDS if first == first else float(trace.time[request]))
        prompt, space = self._text.of(request)[: trace.num_tokens[request]], self._space(request)
        whole = self._begun.cache.match(prompt, space)
        exact = self._computed.cache.match(prompt, space)
        pages = prompt[: len(prompt) // self._page * self._page]
        self._begun.begin(request, prompt, pages, space, int(trace.priority[request]), self._happen_next)
        computed = first if first == first else _AT_ONCE
        heappush(self._to_come, (computed, request, False))
        heappush(self._to_come, (max(computed, end) if end == end else computed, request, True))
        return max(len(whole.pages) * self._page, exact.num_tokens)

    def _space(self, request: int) -> Namespace:
        return self._spaces[self._trace.namespace.of(request)]

    def _advance(self, now: float) -> None:
        while self._to_come and (now != now or self._to_come[0][0] <= now):
            self._happen_next()

    def _happen_next(self) -> bool:
        """The next prompt or answer is computed and can be shared; False when there is none."""
        if not self._to_come:
            return False
        _, request, is_end = heappop(self._to_come)
        tokens, trace = self._text.of(request), self._trace
        prompt = tokens[: trace.num_tokens[request]]
        if is_end:
            self._begun.end(request, tokens)
            self._computed.end(request, tokens)
        else:
            self._begun.extend(request, prompt)
            priority = int(trace.priority[request])
            self._computed.begin(request, prompt, prompt, self._space(request), priority, lambda: False)
        return True


class _Holder:
    """A cache and the leases of the requests that are in it."""

    def __init__(self, num_pages: int, page_size: int, policy: str) -> None:
        self.cache = PrefixCache(
            PagePool(num_pages, page_size), RadixConfig(page_size=page_size, eviction_policy=policy)
        )
        self._leases: dict[int, Lease] = {}

    def begin(
        self,
        request: int,
        prompt: Int32Array,
        stored: Int32Array,
        space: Namespace,
        priority: int,
        make_room: Callable[[], bool],
    ) -> None:
        """Take what matches, room for the prompt, and store a beginning of it; `make_room` ends another one."""
        cache = self.cache
        lease = self._leases[request] = cache.acquire(cache.match(prompt, space), priority)
        while not cache.reserve(lease, len(prompt)) and make_room():
            pass
        cache.copied(lease)
        cache.commit(lease, stored[: len(lease.pages) * cache.page_size])

    def extend(self, request: int, tokens: Int32Array) -> None:
        """Store more, if there is room."""
        lease = self._leases[request]
        if self.cache.reserve(lease, len(tokens)):
            self.cache.commit(lease, tokens)

    def end(self, request: int, tokens: Int32Array) -> None:
        """Store all and let go."""
        self.extend(request, tokens)
        self.cache.release(self._leases.pop(request))
