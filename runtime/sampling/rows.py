"""Order within rows of logits, without sorting a vocabulary: all of it ranks equal logits by token id.

Logits are torch tensors [n, vocab], float32, on any device; the answers are small numpy arrays on the host.
On a CPU numpy does the work: its vectorised argmax, partition and sort take a tenth of torch's time there.
Ties are never left to a kernel: an order is a sorted list of *values*, which has no ties to decide, and ids
are looked up afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["argmax", "find", "largest", "take"]

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


def take(rows: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """The rows of these (ascending, distinct) indices; without a copy where that's all of them."""
    return (
        rows
        if len(indices) == len(rows)
        else rows[torch.tensor(indices, dtype=torch.int64, device=rows.device)]
    )


def argmax(rows: torch.Tensor) -> tuple[Indices, Floats]:
    """The lowest id of the largest logit of each row, and that logit; a row with a NaN gives a NaN."""
    if rows.device.type == "cpu":
        array = rows.numpy()
        ids = array.argmax(axis=-1)
        return ids, array[np.arange(len(array)), ids]
    best = rows.argmax(dim=-1)
    return best.cpu().numpy(), rows.gather(1, best[:, None])[:, 0].cpu().numpy()


def top_values(rows: torch.Tensor, k: int) -> Floats:
    """The k largest logits of each row, descending: [n, k]. O(vocab + k log k) a row."""
    if rows.device.type != "cpu":
        return rows.topk(k, dim=-1).values.cpu().numpy()
    array, vocab_size = rows.numpy(), rows.shape[1]
    if k < vocab_size:
        array = np.partition(array, vocab_size - k, axis=-1)[:, vocab_size - k :]
    return np.sort(array, axis=-1)[:, ::-1].copy()


def find(rows: torch.Tensor, values: Floats, ranks: Indices) -> Indices:
    """The id in each row of the logit `values[row]`; where several have it, number `ranks[row]` by id."""
    positions = _flat_nonzero(rows == torch.from_numpy(values).to(rows.device)[:, None])
    row_starts = np.arange(len(rows)) * rows.shape[1]
    ids: Indices = positions[np.searchsorted(positions, row_starts) + ranks] - row_starts
    return ids


def largest(rows: torch.Tensor, k: int) -> tuple[Floats, Indices]:
    """The k largest logits of each row, descending, equal ones by id, and their ids: both [n, k]."""
    values = top_values(rows, k)
    last = torch.from_numpy(values[:, -1:]).to(rows.device)
    positions = _flat_nonzero(rows >= last)
    found = rows.reshape(-1)[torch.from_numpy(positions).to(rows.device)].cpu().numpy()
    row_ids = positions // rows.shape[1]
    order = np.lexsort((positions, -found, row_ids))
    first = np.searchsorted(row_ids, np.arange(len(rows)))
    chosen = positions[order[first[:, None] + np.arange(k)]]
    return values, chosen % rows.shape[1]


def _flat_nonzero(mask: torch.Tensor) -> Indices:
    if mask.device.type == "cpu":
        return np.flatnonzero(mask.numpy())
    return mask.reshape(-1).nonzero()[:, 0].cpu().numpy()
