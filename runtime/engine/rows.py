"""What a scheduled request's rows of a step are for: logits to score, a token to sample, a grammar to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trunkline.runtime.sampling import SampleRow, SamplingParams, Waiting
from trunkline.scheduler import ScheduledRequest

__all__ = ["SamplingState", "constrained", "logits_rows", "num_scored", "sample_row"]


@dataclass(frozen=True, slots=True)
class SamplingState:
    """What the scheduler carries for the runner: how a request samples, the seed it really uses, what ends it."""

    params: SamplingParams
    seed: int
    ending_token_ids: frozenset[int]


def constrained(request: ScheduledRequest) -> Waiting | None:
    """What the grammars must know of a request that samples under a constraint."""
    state: SamplingState = request.payload
    if state.params.constraint is None or not request.samples:
        return None
    return Waiting(request.id, state.params.constraint, request.history[request.num_prompt_tokens :])


def num_scored(request: ScheduledRequest) -> int:
    """How many of the step's positions predict a prompt token whose log-probability is wanted."""
    if request.logits_from is None:
        return 0
    first = max(request.logits_from, request.start)
    last = min(request.start + len(request.tokens), request.num_prompt_tokens - 1)
    return max(0, last - first)


def logits_rows(scheduled: Sequence[ScheduledRequest], ends: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Rows of the step's hidden states that need logits, of each request the scored ones, then the last.

    `ends[i]` is one past the last row of request i.
    """
    if all(request.logits_from is None for request in scheduled):
        return ends.astype(np.int64) - 1
    return np.concatenate([_rows_of(*pair) for pair in zip(scheduled, ends.tolist(), strict=True)])


def _rows_of(request: ScheduledRequest, end: int) -> npt.NDArray[np.int64]:
    begin = end - len(request.tokens)
    count = num_scored(request)
    rows = np.empty(count + 1, dtype=np.int64)
    if count:
        assert request.logits_from is not None
        first = begin + max(request.logits_from, request.start) - request.start
        rows[:count] = np.arange(first, first + count)
    rows[-1] = end - 1
    return rows


def sample_row(request: ScheduledRequest) -> SampleRow:
    """The sampler's view of a request that samples."""
    state: SamplingState = request.payload
    return SampleRow(
        params=state.params,
        history=request.history,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        seed=state.seed,
        banned_until_min=state.ending_token_ids,
    )
