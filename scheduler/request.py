"""What a request is, and the stations of its life."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from trunkline.radix.hashing import DEFAULT_NAMESPACE, Namespace
from trunkline.radix.tokens import Int32Array

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One sequence to continue.

    `prompt` is a one-dimensional int32 array of at least one token, and must not be changed by the caller
    afterwards. A higher `priority` is a more important class. `logits_from` is the position from which
    every prompt token's logits are wanted (prompt log-probabilities); it caps prefix reuse at that many
    tokens. `arrival_time` is in seconds on the clock that `now` is read from. A request that `is_sequential` is
    sampled only when every token before is known here (a grammar or a penalty goes by them). `payload` is
    opaque here.
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
    is_sequential: bool = False
    payload: Any = None


class Status(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
