"""Small tensors from a device to the host, without holding up those who launch what comes next."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

__all__ = ["HostCopy"]


class HostCopy:
    """Tensors of one device as arrays on the host.

    From a CUDA device they travel on the current stream into page-locked memory while the host goes on, and
    `arrays` waits for just them; from a CPU they are the tensors' own memory.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors
        self._arrived: torch.Event | None = None
        device = tensors[0].device
        if device.type == "cuda":
            self._tensors = tuple(
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                    tensor, non_blocking=True
                )
                for tensor in tensors
            )
            self._arrived = torch.Event(device)
            self._arrived.record()

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """What the tensors held when they were given; waits for their arrival."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return tuple(tensor.numpy() for tensor in self._tensors)
