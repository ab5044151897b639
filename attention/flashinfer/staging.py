"""How a step's index arrays reach the device: one copy, from page-locked memory that is not reused too early."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trunkline.attention.metadata import Int32Array
from trunkline.attention.streams import Event, Streams

from .problem import Problem

NUM_SLOTS = 2
_INITIAL_ENTRIES = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A problem's arrays for FlashInfer's `plan`: what it reads on the host, and copies on the device, int32."""

    problem: Problem
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    last_page_len: torch.Tensor
    kv_lens: torch.Tensor
    device_qo_indptr: torch.Tensor
    device_kv_indptr: torch.Tensor
    device_last_page_len: torch.Tensor
    device_kv_indices: torch.Tensor


class Staging:
    """Buffers that take turns.

    The copies of a step run when the device gets to them, which may be after the next step's arrays are written: each
    buffer is written again only when the event behind its last use has passed. With two of them that never
    waits while the host is at most one step ahead.
    """

    def __init__(self, device: torch.device, streams: Streams, num_slots: int = NUM_SLOTS) -> None:
        self._device = device
        self._slots = [_Slot(device, streams.event()) for _ in range(num_slots)]
        self._turn = 0

    def begin(self) -> None:
        """Takes the next buffer, once its last user is done."""
        self._turn = (self._turn + 1) % len(self._slots)
        self._slot.event.synchronize()
        self._slot.used = 0

    def end(self) -> None:
        """All copies out of the buffer have been given to the current stream."""
        self._slot.event.record()

    def stage(self, problem: Problem) -> Staged:
        """Copies a problem to the device."""
        arrays = (
            problem.qo_indptr,
            problem.kv_indptr,
            problem.last_page_len,
            problem.kv_lens,
            problem.kv_indices,
        )
        (qo_indptr, kv_indptr, last_page_len, kv_lens, _), device = self.copy(arrays)
        return Staged(
            problem,
            qo_indptr,
            kv_indptr,
            last_page_len,
            kv_lens,
            device_qo_indptr=device[0],
            device_kv_indptr=device[1],
            device_last_page_len=device[2],
            device_kv_indices=device[4],
        )

    def copy(self, arrays: Sequence[Int32Array]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The arrays in page-locked memory, and on the device, to which they go end to end in one copy."""
        total = sum(map(len, arrays))
        pinned = self._slot.take(total, self._device)
        np.concatenate(arrays, out=pinned.numpy(), casting="same_kind")
        on_device = pinned.to(self._device, non_blocking=True)
        lengths = [len(array) for array in arrays]
        return list(torch.split(pinned, lengths)), list(torch.split(on_device, lengths))

    @property
    def _slot(self) -> "_Slot":
        return self._slots[self._turn]


class _Slot:
    """One buffer; arrays of a step lie end to end in it."""

    def __init__(self, device: torch.device, event: Event) -> None:
        self.event = event
        self.used = 0
        self._entries = _pinned(_INITIAL_ENTRIES, device)

    def take(self, count: int, device: torch.device) -> torch.Tensor:
        """The next `count` entries. A larger buffer replaces one that is full; what was taken stays valid."""
        if self.used + count > len(self._entries):
            self._entries = _pinned(2 * (self.used + count), device)
            self.used = 0
        taken = self._entries[self.used : self.used + count]
        self.used += count
        return taken


def _pinned(count: int, device: torch.device) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int32, pin_memory=device.type == "cuda")
