"""What a request is (`Request`, frozen), the stations of its life, and the buffer that its tokens grow in."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np

from trunkline.radix.hashing import DEFAULT_NAMESPACE, Namespace
from trunkline.radix.tokens import Int32Array

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One sequence to continue.

    `prompt` is a one-dimensional int32 array of at least one token, and must not be changed by the caller
    afterwards. A higher `priority` is a more important class. `logits_from` is the position from which
    every prompt token's logits are wanted (prompt log-probabilities); it caps prefix reuse at that many
    tokens. `arrival_time` is in seconds on the clock that `now` is read from. `payload` is opaque here.
    """

    id: str
    prompt: Int32Array
    max_new_tokens: int
    min_new_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    namespace: Namespace = DEFAULT_NAMESPACE
    arrival_time: float = 0.0
    logits_from: int | None = None
    payload: Any = None


class Status(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


_TRANSITIONS = {
    Status.WAITING: (Status.RUNNING, Status.FINISHED),
    Status.RUNNING: (Status.PREEMPTED, Status.FINISHED),
    Status.PREEMPTED: (Status.RUNNING, Status.FINISHED),
    Status.FINISHED: (),
}


class TokenBuffer:
    """A growing int32 array: appending is amortised O(1), reading is a view without a copy."""

    __slots__ = ("_data", "length")

    def __init__(self, tokens: Int32Array) -> None:
        # The prompt itself is the first storage: a request that only waits costs no copy of it.
        self._data = tokens
        self.length = len(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens`; views handed out before keep showing what they showed."""
        end = self.length + len(tokens)
        if end > len(self._data):
            grown = np.empty(max(end, self.length + self.length // 2, 64), dtype=np.int32)
            grown[: self.length] = self._data[: self.length]
            self._data = grown
        self._data[self.length : end] = tokens
        self.length = end

    def view(self, start: int, end: int) -> Int32Array:
        """Tokens `start..end-1`, O(1)."""
        return self._data[start:end]
