"""What the scheduler knows about one request while it lives."""

from dataclasses import dataclass

import numpy as np

from trunkline.radix.lease import Lease
from trunkline.radix.tokens import Int32Array

from .errors import TransitionError
from .request import FinishReason, Request, Status

_TRANSITIONS = {
    Status.WAITING: (Status.RUNNING, Status.FINISHED),
    Status.RUNNING: (Status.PREEMPTED, Status.FINISHED),
    Status.PREEMPTED: (Status.RUNNING, Status.FINISHED),
    Status.FINISHED: (),
}


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """How a request ends whose pages a plan in flight still writes."""

    reason: FinishReason
    error: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SwappedPages:
    """A preempted request's pages in host memory: those from page index `first` on, `num_tokens` computed."""

    first: int
    host_pages: Int32Array
    num_tokens: int


class RequestState:
    """A request, its growing tokens, its lease and its place in the scheduler.

    `num_computed < num_tokens`; the tokens between them are yet to be computed. Both run ahead of the plans in
    flight: `num_computed` counts what they compute, `num_tokens` what they sample. What has come of it so far are
    `num_landed` computed and `num_known` known tokens; with nothing in flight the two of each pair are equal.
    `most_tokens` is prompt and longest output together. `page_hashes` are the chain hashes of the prompt's whole
    pages, computed once. `matched_pages` counts the whole pages of the prompt that are cached while the request
    waits (kept by `MatchIndex`). `capacity` is the number of tokens the lease's pages cover, `most_pages` what it
    can come to; `commit_at` is the number of landed tokens that is worth the next commit, `max_computed` what was
    computed before the last preemption.
    """

    __slots__ = (
        "arrival_step",
        "buffer",
        "capacity",
        "commit_at",
        "end_group",
        "ending",
        "id",
        "in_flight_from",
        "lease",
        "matched_pages",
        "max_computed",
        "most_pages",
        "most_tokens",
        "next_group",
        "num_cached_tokens",
        "num_computed",
        "num_known",
        "num_landed",
        "num_preemptions",
        "num_prompt",
        "num_shared_pages",
        "num_tokens",
        "order_entry",
        "overtaken",
        "page_hashes",
        "parked_group",
        "progress_step",
        "request",
        "seq",
        "status",
        "swapped",
        "was_admitted",
    )

    def __init__(self, request: Request, seq: int, arrival_step: int, page_hashes: tuple[int, ...]) -> None:
        self.request = request
        self.id = request.id
        self.seq = seq
        self.arrival_step = arrival_step
        self.page_hashes = page_hashes
        self.status = Status.WAITING
        # The first `num_known` count. The prompt itself is the first storage: waiting costs no copy of it.
        self.buffer = request.prompt
        self.num_prompt = self.num_tokens = self.num_known = len(request.prompt)
        self.most_tokens = self.num_prompt + request.max_new_tokens
        self.num_computed = self.num_landed = 0
        self.lease: Lease | None = None
        self.capacity = 0
        self.most_pages = 0
        self.commit_at = 0
        self.num_shared_pages = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.was_admitted = False
        self.max_computed = 0
        self.progress_step = 0
        self.ending: Ending | None = None
        self.swapped: SwappedPages | None = None
        self.overtaken = 0
        self.in_flight_from = len(page_hashes)
        self.matched_pages = 0
        self.next_group: dict[int, RequestState] | None = None
        self.end_group: dict[int, RequestState] | None = None
        self.parked_group: dict[int, RequestState] | None = None
        self.order_entry: object = None

    @property
    def num_output(self) -> int:
        """Tokens that were generated and are known."""
        return self.num_known - self.num_prompt

    @property
    def is_done(self) -> bool:
        """Nothing is left to compute: it has ended, or the last token that it may have is being sampled."""
        return self.ending is not None or self.num_tokens >= self.most_tokens

    @property
    def num_own_pages(self) -> int:
        """Pages of the lease that did not come from a shared prefix."""
        return 0 if self.lease is None else len(self.lease.pages) - self.num_shared_pages

    @property
    def history(self) -> Int32Array:
        """Every known token, prompt and output; a view."""
        return self.buffer[: self.num_known]

    def tokens(self, start: int, end: int) -> Int32Array:
        """Known tokens `start..end-1`; a view."""
        return self.buffer[start:end]

    def write(self, index: int, token: int) -> None:
        """Put a token at the end of the buffer or in the place of a pending one; amortised O(1)."""
        if index == len(self.buffer):
            grown = np.empty(max(index + index // 2, 64), dtype=np.int32)
            grown[:index] = self.buffer
            self.buffer = grown
        self.buffer[index] = token

    def learn(self, token: int) -> None:
        """The next token is known."""
        known = self.num_known
        self.write(known, token)
        self.num_known = known + 1

    def move(self, status: Status) -> None:
        """Change the status; raises `TransitionError` for a change that a request's life does not have."""
        if status not in _TRANSITIONS[self.status]:
            raise TransitionError(f"request {self.id!r} cannot go from {self.status.value} to {status.value}")
        self.status = status

    @property
    def logits_from(self) -> int | None:
        """First prompt position whose logits are still owed, or None."""
        wanted = self.request.logits_from
        if wanted is None:
            return None
        owed = max(wanted, self.max_computed)
        return owed if owed < self.num_prompt else None

    @property
    def reuse_limit(self) -> int:
        """The most tokens to read from the cache: one is always computed, and logits that are owed."""
        owed = self.logits_from
        return self.num_tokens - 1 if owed is None else min(owed, self.num_tokens - 1)
