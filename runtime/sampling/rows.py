"""Order within rows of logits, without sorting a vocabulary: all of it ranks equal logits by token id.

Logits are torch tensors [n, vocab], float32, on any device; the answers are small numpy arrays on the host.
On a CPU numpy does the work: its vectorised argmax, partition and sort take a tenth of torch's time there.
Ties are never left to a kernel: an order is a sorted list of *values*, which has no ties to decide, and ids
are looked up afterwards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["BLOCK", "argmax", "best", "block_weights", "find", "largest", "ranks", "take", "top_values"]

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

BLOCK = 128


def take(rows: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """The rows of these (ascending, distinct) indices; without a copy where that's all of them."""
    return (
        rows
        if len(indices) == len(rows)
        else rows[torch.tensor(indices, dtype=torch.int64, device=rows.device)]
    )


def best(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest id of the largest logit of each row, and that logit, on the rows' device; a NaN comes first."""
    if rows.device.type == "cpu":
        array = rows.numpy()
        ids = array.argmax(axis=-1)
        return torch.from_numpy(ids), torch.from_numpy(array[np.arange(len(array)), ids])
    ids_there = rows.argmax(dim=-1)
    return ids_there, rows.gather(1, ids_there[:, None])[:, 0]


def argmax(rows: torch.Tensor) -> tuple[Indices, Floats]:
    """`best` on the host."""
    ids, peaks = best(rows)
    return ids.cpu().numpy(), peaks.cpu().numpy()


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
    positions = _positions(operator.eq, rows, values)
    row_starts = np.arange(len(rows)) * rows.shape[1]
    ids: Indices = positions[np.searchsorted(positions, row_starts) + ranks] - row_starts
    return ids


def largest(rows: torch.Tensor, k: int) -> tuple[Floats, Indices]:
    """The k largest logits of each row, descending, equal ones by id, and their ids: both [n, k]."""
    values = top_values(rows, k)
    positions = _positions(operator.ge, rows, values[:, -1])
    found = rows.reshape(-1)[torch.from_numpy(positions).to(rows.device)].cpu().numpy()
    row_ids = positions // rows.shape[1]
    order = np.lexsort((positions, -found, row_ids))
    first = np.searchsorted(row_ids, np.arange(len(rows)))
    chosen = positions[order[first[:, None] + np.arange(k)]]
    return values, chosen % rows.shape[1]


def ranks(rows: torch.Tensor, ids: Indices, values: Floats) -> Indices:
    """The rank of each row's token `ids[row]`, whose logit is `values[row]`; the likeliest has 1."""
    if rows.device.type == "cpu":
        pairs = zip(rows.numpy(), values, strict=True)
        larger = np.array([np.count_nonzero(row > value) for row, value in pairs], dtype=np.int64)
    else:
        larger = (rows > torch.from_numpy(values).to(rows.device)[:, None]).sum(dim=-1).cpu().numpy()
    positions = _positions(operator.eq, rows, values)
    row_starts = np.arange(len(rows)) * rows.shape[1]
    ties: Indices = np.searchsorted(positions, row_starts + ids) - np.searchsorted(positions, row_starts)
    return larger + ties + 1


def block_weights(rows: torch.Tensor, peaks: Floats, temperatures: Sequence[float]) -> torch.Tensor:
    """exp((logit - peak) / temperature), float32, as [n, blocks, BLOCK]; the last block is filled with zeros.

    Subtracting before dividing keeps tiny temperatures from overflowing to NaN. In blocks, because their sums
    don't depend on how a kernel cuts up a batch.
    """
    num_rows, vocab_size = rows.shape
    num_blocks = -(-vocab_size // BLOCK)
    weights = rows.new_empty(num_rows, num_blocks * BLOCK)
    weights[:, vocab_size:] = 0.0
    real = weights[:, :vocab_size]
    torch.sub(rows, torch.from_numpy(peaks).to(rows.device)[:, None], out=real)
    if any(temperature != 1.0 for temperature in temperatures):
        real.div_(torch.tensor(temperatures, dtype=torch.float32, device=rows.device)[:, None])
    real.exp_()
    return weights.view(num_rows, num_blocks, BLOCK)


def _positions(
    compare: Callable[[Any, Any], Any], rows: torch.Tensor, values: npt.NDArray[np.float32]
) -> Indices:
    """Where `compare(logit, values[row])` holds, as positions in the flattened rows, ascending."""
    if rows.device.type == "cpu":
        return np.flatnonzero(compare(rows.numpy(), values[:, None]))
    mask: torch.Tensor = compare(rows, torch.from_numpy(values).to(rows.device)[:, None])
    positions: Indices = mask.reshape(-1).nonzero()[:, 0].cpu().numpy()
    return positions
