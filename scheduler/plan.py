"""What passes between scheduler and runner: the plan of a step, its result, the tokens that came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from trunkline.radix.tokens import Int32Array

from .request import FinishReason

# Stands in a plan for a token that the plan before it is still sampling. No id of any vocabulary.
PENDING_TOKEN = -1


def empty_pairs() -> Int32Array:
    """An int32 array of shape [0, 2]."""
    return np.empty((0, 2), dtype=np.int32)


class ScheduledRequest(NamedTuple):
    """One request's share of a step. The arrays are views into the scheduler's state, valid until its next call.

    `tokens` are to be computed now and stand at positions `start..start+len(tokens)-1`; `pages` is the page
    table and covers all of them. With `samples` the last of `tokens` is the last known token, so its logits
    give the next one. `history` is every known token, prompt and output. `logits_from` is the first prompt
    position whose logits are still owed, or None. With `pending`, `tokens` is one `PENDING_TOKEN` in the place of
    the token that the plan before this one samples for the same request.
    """

    id: str
    payload: Any
    tokens: Int32Array
    start: int
    pages: Int32Array
    samples: bool
    num_prompt_tokens: int
    num_output_tokens: int
    history: Int32Array
    logits_from: int | None
    pending: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SchedulePlan:
    """What one step computes.

    The runner executes, in this order: `swap_out`, `page_copies`, `swap_in`, then the forward pass.
    `page_copies` is int32 [n, 2] of (source, destination) device pages; `swap_out` int32 [n, 2] of (device
    page, host page); `swap_in` int32 [n, 2] of (host page, device page). Host pages are numbered from 1.
    `num_attended` sums, over all tokens of the step, the number of positions each of them attends to.
    """

    step: int
    scheduled: tuple[ScheduledRequest, ...]
    page_copies: Int32Array
    swap_out: Int32Array
    swap_in: Int32Array
    preempted: tuple[str, ...]
    num_tokens: int
    num_attended: int
    scheduled_at: float


@dataclass(slots=True)
class StepResult:
    """What the runner gives back.

    `tokens` has the sampled token(s) of every scheduled request with `samples`; `failed` maps a request to
    the reason why nothing of it may be kept. `elapsed` is the duration of the step in seconds where the
    runner measured it (else the caller's clock is used); `copy_elapsed` the seconds its swap copies took.
    """

    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    elapsed: float | None = None
    copy_elapsed: float | None = None


@dataclass(slots=True)
class TokenOutput:
    """News of one request: its new tokens and, once, how it ended.

    `tokens` holds a stop token that ended the request, which `stop_token` then names. `num_cached_tokens` is
    the part of the prompt that came from the cache when the request was first admitted.
    """

    id: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_token: int | None
    num_cached_tokens: int
    num_preemptions: int
    error: str | None = None
