"""Draws tokens where the logits lie, without a word from the host; see drawing.py for the host's way.

Each row is sorted as a whole, the likeliest first and equal ones by id, and one number picks by the inverse of
the cumulative distribution. That is more work than on the host, but nobody waits for it: the next step can be
launched while it is still to be done.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from trunkline.attention.streams import to_device

from .params import SamplingParams

__all__ = ["draw_on_device"]

ROWS_AT_ONCE = 32


def draw_on_device(
    logits: torch.Tensor, params: Sequence[SamplingParams], numbers: npt.NDArray[np.float64]
) -> torch.Tensor:
    """One token id for each row of logits [n, vocab]: int64 [n] on their device.

    numbers: in [0, 1), one a row. A row without a finite logit, or with a NaN, gets some id of the vocabulary.
    """
    vocab_size = logits.shape[1]
    settings = np.array(
        [
            (row.temperature, row.top_k if row.top_k > 0 else vocab_size, row.top_p, row.min_p, number)
            for row, number in zip(params, numbers, strict=True)
        ],
        dtype=np.float64,
    )
    columns = to_device(settings, logits.device)
    groups = zip(torch.split(logits, ROWS_AT_ONCE), torch.split(columns, ROWS_AT_ONCE), strict=True)
    return torch.cat([_draw(rows, settings) for rows, settings in groups])


def _draw(logits: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    temperature, top_k, top_p, min_p, numbers = settings[:, :, None].unbind(1)
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    weights = ((values.double() - values[:, :1]) / temperature).exp_()
    weights.masked_fill_(torch.arange(logits.shape[1], device=logits.device) >= top_k, 0.0)
    reached = weights.cumsum(dim=-1)
    # The token that carries the sum over top_p is the last one kept.
    kept = (reached - weights < top_p * reached[:, -1:]) & (weights >= min_p)
    cumulative = weights.masked_fill_(~kept, 0.0).cumsum_(dim=-1)
    total = cumulative[:, -1:]
    # Rounding may carry the target to the total; the last token that weighs is meant then.
    targets = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    places = (cumulative <= targets).sum(dim=-1, keepdim=True).clamp_(max=logits.shape[1] - 1)
    return order.gather(1, places)[:, 0]
