"""What moves single logits before sampling: bias, penalties, and the ban of stop tokens below min_tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trunkline.attention.streams import to_device

from .grammar import Mask
from .params import SamplingParams

__all__ = ["SampleRow", "adjust_logits", "restrict_logits"]

Indices = npt.NDArray[np.int64]


class SampleRow(NamedTuple):
    """What the sampler needs to know of the request behind one row of logits.

    history: int32, every token known so far, `num_prompt_tokens` of the prompt, then `num_output_tokens`
        generated.
    seed: int64, the one really used: the request's own (or of its choice), or one that the engine drew.
    banned_until_min: ids that would end the request, not to be sampled before `params.min_tokens` tokens unless a
        constraint leaves no other.
    """

    params: SamplingParams
    history: npt.NDArray[np.int32]
    num_prompt_tokens: int
    num_output_tokens: int
    seed: int
    banned_until_min: Collection[int] = ()


def adjust_logits(
    logits: torch.Tensor, rows: Sequence[SampleRow], masks: Mapping[int, Mask] | None = None
) -> torch.Tensor:
    """The logits [n, vocab] with every row's bias, penalties and bans; the same tensor where no row has any.

    `masks` says, by row, what `restrict_logits` will allow: where those are none but banned tokens, the ban falls.

    A banned token gets -inf by addition, so that a NaN or +inf the model produced stays visible. Costs, for
    the rows that ask: a copy of the logits, their history's length for the repetition penalty, O(m log m)
    in their output's length m for the other two. Stateless: the counts come from the history each time,
    whatever happened to the request before.
    """
    if not any(row.params.moves_logits for row in rows):
        return logits
    biases = [(index, *row.params.bias_arrays) for index, row in enumerate(rows) if row.params.logit_bias]
    repeats = [index for index, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    terms = [
        (index, *term)
        for index, row in enumerate(rows)
        for term in _additive_terms(row, (masks or {}).get(index))
    ]
    if not (biases or repeats or terms):
        return logits
    adjusted = logits.clone()
    _add(adjusted, biases)
    if repeats:
        _penalise_repetition(adjusted, rows, repeats)
    _add(adjusted, terms)
    return adjusted


def restrict_logits(adjusted: torch.Tensor, logits: torch.Tensor, masks: Mapping[int, Mask]) -> torch.Tensor:
    """The adjusted logits with a row's mask [vocab], 0 or -inf, added; `logits` itself is never written."""
    if masks and adjusted is logits:
        adjusted = logits.clone()
    for index, mask in masks.items():
        adjusted[index].add_(to_device(mask, adjusted.device))
    return adjusted


def _additive_terms(row: SampleRow, mask: Mask | None) -> list[tuple[Indices, npt.NDArray[np.float32]]]:
    """What is added after the repetition penalty: pairs of token ids (each once in a pair) and values."""
    params, terms = row.params, []
    if row.num_output_tokens and (params.frequency_penalty or params.presence_penalty):
        ids, counts = np.unique(row.history[row.num_prompt_tokens :], return_counts=True)
        penalties = params.frequency_penalty * counts + params.presence_penalty
        terms.append((ids.astype(np.int64), -penalties.astype(np.float32)))
    if row.num_output_tokens < params.min_tokens and row.banned_until_min:
        banned = np.array(sorted(set(row.banned_until_min)), dtype=np.int64)
        if mask is None or np.count_nonzero(mask == 0) > np.count_nonzero(mask[banned] == 0):
            terms.append((banned, np.full(len(banned), -np.inf, dtype=np.float32)))
    return terms


def _add(logits: torch.Tensor, terms: Sequence[tuple[int, Indices, npt.NDArray[np.float32]]]) -> None:
    """Adds sparse terms (row, token ids, values) in place."""
    if not terms:
        return
    row_ids, token_ids = _positions([(index, ids) for index, ids, _ in terms], logits.device)
    values = to_device(np.concatenate([values for _, _, values in terms]), logits.device)
    logits.index_put_((row_ids, token_ids), values, accumulate=True)


def _penalise_repetition(logits: torch.Tensor, rows: Sequence[SampleRow], indices: Sequence[int]) -> None:
    """In place, the penalty of Keskar et al. (CTRL, 2019) on every token of the history, prompt included.

    A token that stands there twice is written twice with one and the same value.
    """
    histories = [(index, rows[index].history.astype(np.int64)) for index in indices]
    row_ids, token_ids = _positions(histories, logits.device)
    factors = torch.tensor([row.params.repetition_penalty for row in rows], device=logits.device)[row_ids]
    seen = logits[row_ids, token_ids]
    logits[row_ids, token_ids] = torch.where(seen > 0, seen / factors, seen * factors)


def _positions(
    tokens: Sequence[tuple[int, Indices]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers and token ids, flat, of pairs (row, token ids)."""
    row_ids = np.repeat([index for index, _ in tokens], [len(ids) for _, ids in tokens])
    token_ids = np.concatenate([ids for _, ids in tokens])
    return to_device(row_ids, device), to_device(token_ids, device)
