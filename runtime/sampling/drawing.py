"""Draws tokens from filtered distributions: one number a row, by the inverse of the cumulative distribution.

Everything that decides a token is a function of its own row, summed in one fixed order, so that a row's token
doesn't depend on the rows beside it:

* without top_k and top_p the tokens stand in order of id. Their weights are summed in blocks; the number
  picks a block, then a token in it, so that no cumulative sum runs over a vocabulary;
* otherwise they stand from the likeliest down, and only as many as the filters can keep are brought out: 256
  at first, then 16 times as many, so that a whole vocabulary is sorted only for a nearly flat distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from .params import SamplingParams
from .rows import BLOCK, Floats, Indices, block_weights, find, take, top_values

__all__ = ["draw"]

Doubles = npt.NDArray[np.float64]

FIRST_DEPTH = 256
DEPTH_GROWTH = 16
WEIGHTS_AT_ONCE = 1 << 16


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], peaks: Floats, numbers: Doubles) -> Indices:
    """One token id for each row of logits [n, vocab].

    peaks: each row's largest logit, finite. numbers: in [0, 1), one a row.
    """
    vocab_size = logits.shape[1]
    ids = np.empty(len(params), dtype=np.int64)
    ranked = [index for index, row in enumerate(params) if _is_ranked(row, vocab_size)]
    unranked = [index for index, row in enumerate(params) if not _is_ranked(row, vocab_size)]
    for indices, method in ((ranked, _draw_ranked), (unranked, _draw_unranked)):
        if indices:
            chosen = [params[index] for index in indices]
            ids[indices] = method(take(logits, indices), chosen, peaks[indices], numbers[indices])
    return ids


def _is_ranked(params: SamplingParams, vocab_size: int) -> bool:
    return params.top_p < 1.0 or 0 < params.top_k < vocab_size


def _draw_unranked(
    logits: torch.Tensor, params: Sequence[SamplingParams], peaks: Floats, numbers: Doubles
) -> Indices:
    weights = block_weights(logits, peaks, [row.temperature for row in params])
    if any(row.min_p for row in params):
        min_p = torch.tensor([row.min_p for row in params], device=logits.device)
        weights *= weights >= min_p[:, None, None]
    sums = np.cumsum(weights.sum(dim=-1).cpu().numpy(), axis=-1, dtype=np.float64)
    targets = numbers * sums[:, -1]
    blocks = _first_above(sums, targets)
    rows = np.arange(len(params))
    before = np.where(blocks > 0, sums[rows, blocks - 1], 0.0)
    inside = weights[torch.from_numpy(rows), torch.from_numpy(blocks)].cpu().numpy()
    return blocks * BLOCK + _first_above(np.cumsum(inside, axis=-1, dtype=np.float64), targets - before)


def _draw_ranked(
    logits: torch.Tensor, params: Sequence[SamplingParams], peaks: Floats, numbers: Doubles
) -> Indices:
    vocab_size = logits.shape[1]
    top_k = np.array([row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in params])
    masses = _masses(logits, params, peaks, np.flatnonzero(top_k == vocab_size))
    ids = np.empty(len(params), dtype=np.int64)
    pending, depth = np.arange(len(params)), FIRST_DEPTH
    while len(pending):
        depth = min(depth, vocab_size)
        unsettled = []
        for group in np.array_split(pending, -(-len(pending) * depth // WEIGHTS_AT_ONCE)):
            rows = take(logits, group.tolist())
            values = top_values(rows, depth)
            chosen = [params[index] for index in group.tolist()]
            positions, settled = _draw_positions(values, chosen, top_k[group], masses[group], numbers[group])
            picked = values[np.arange(len(group)), positions]
            ranks = positions - (values == picked[:, None]).argmax(axis=-1)
            ids[group] = find(rows, picked, ranks)
            unsettled.append(group[~settled])
        pending, depth = np.concatenate(unsettled), depth * DEPTH_GROWTH
    return ids


def _draw_positions(
    values: Floats, params: Sequence[SamplingParams], top_k: Indices, masses: Doubles, numbers: Doubles
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Positions drawn in rows of descending logits, and whether the row was deep enough to tell.

    masses: the weight of all tokens together, NaN for rows with top_k: theirs is that of the k.
    """
    depth = values.shape[1]
    temperature = np.array([row.temperature for row in params])[:, None]
    top_p = np.array([row.top_p for row in params])[:, None]
    min_p = np.array([row.min_p for row in params])[:, None]
    weights = np.exp((values.astype(np.float64) - values[:, :1]) / temperature)
    weights[np.arange(depth) >= top_k[:, None]] = 0.0
    reached = np.cumsum(weights, axis=-1)
    totals = np.where(np.isnan(masses), reached[:, -1], masses)[:, None]
    # The token that carries the sum over top_p is the last one kept.
    kept = (reached - weights < top_p * totals) & (weights >= min_p)
    settled = (top_k <= depth) | (
        ~np.isnan(masses) & ((reached[:, -1:] >= top_p * totals) | (weights[:, -1:] < min_p))[:, 0]
    )
    cumulative = np.cumsum(np.where(kept, weights, 0.0), axis=-1)
    return _first_above(cumulative, numbers * cumulative[:, -1]), settled


def _masses(
    logits: torch.Tensor, params: Sequence[SamplingParams], peaks: Floats, indices: Indices
) -> Doubles:
    """The weight of each row's whole vocabulary for the rows at `indices`, NaN for the others."""
    masses = np.full(len(params), np.nan)
    if len(indices):
        temperatures = [params[index].temperature for index in indices]
        weights = block_weights(take(logits, indices.tolist()), peaks[indices], temperatures)
        masses[indices] = weights.sum(dim=-1).cpu().numpy().sum(axis=-1, dtype=np.float64)
    return masses


def _first_above(cumulative: Doubles, targets: Doubles) -> Indices:
    """The first position in each row whose cumulative weight is above the target: always one that weighs.

    Rounding may carry a target to the total (or, in a block, above it); the last positive weight is meant
    then.
    """
    targets = np.minimum(targets, np.nextafter(cumulative[:, -1], 0.0))
    positions: Indices = np.count_nonzero(cumulative <= targets[:, None], axis=-1)
    return positions
