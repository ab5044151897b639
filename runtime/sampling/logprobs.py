"""Log-probabilities under the model's own distribution: before bias, penalties, temperature and filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .rows import Indices, argmax, block_weights, largest, ranks

__all__ = ["LOGPROB_FLOOR", "TokenLogprob", "TokenLogprobs", "prompt_logprobs", "token_logprobs"]

LOGPROB_FLOOR = -9999.0
ROWS_AT_ONCE = 16


class TokenLogprob(NamedTuple):
    """A token, its log-probability (finite, at least -9999.0) and its rank: 1 is the likeliest."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token that was sampled or stands in a prompt, and the likeliest ones at its place, best first."""

    token: TokenLogprob
    top: tuple[TokenLogprob, ...]


def prompt_logprobs(
    logits: torch.Tensor, targets: Sequence[int] | npt.NDArray[np.int32], num_top: int
) -> list[TokenLogprobs]:
    """Scores `targets[i]` by the logits [m, vocab] of the position before; `num_top` alternatives each."""
    return token_logprobs(logits, targets, [num_top] * len(targets))


@torch.inference_mode()
def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int] | npt.NDArray[np.integer], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Scores one token a row of float32 logits [m, vocab], with `num_top[row]` alternatives (vocab at most).

    A few rows at a time, so that the extra memory doesn't grow with a long prompt.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    scored: list[TokenLogprobs] = []
    for start in range(0, len(ids), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        scored += _score(logits[rows], ids[rows], num_top[rows])
    return scored


def _score(logits: torch.Tensor, ids: Indices, num_top: Sequence[int]) -> list[TokenLogprobs]:
    _, peaks = argmax(logits)
    sums = (
        block_weights(logits, peaks, [1.0] * len(ids))
        .sum(dim=-1)
        .cpu()
        .numpy()
        .sum(axis=-1, dtype=np.float64)
    )
    with np.errstate(divide="ignore"):
        normalisers = np.log(sums) + peaks
    chosen = logits.gather(1, torch.from_numpy(ids).to(logits.device)[:, None])[:, 0].cpu().numpy()
    logprobs = _finite(chosen - normalisers)
    token_ranks = ranks(logits, ids, chosen)
    depth = min(max(num_top), logits.shape[1])
    if depth:
        top_logits, top_ids = largest(logits, depth)
        top_logprobs = _finite(top_logits - normalisers[:, None])
    return [
        TokenLogprobs(
            TokenLogprob(int(ids[row]), float(logprobs[row]), int(token_ranks[row])),
            tuple(
                TokenLogprob(int(top_ids[row, at]), float(top_logprobs[row, at]), at + 1)
                for at in range(min(num_top[row], depth))
            ),
        )
        for row in range(len(ids))
    ]


def _finite(logprobs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(np.nan_to_num(logprobs, nan=LOGPROB_FLOOR), LOGPROB_FLOOR)
