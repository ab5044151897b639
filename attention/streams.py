"""What must have happened before what on a device: events, a side stream, and their form on a CPU."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy.typing as npt
import torch


class Event(Protocol):
    """A point in a stream's work."""

    def record(self) -> None:
        """Marks what the current stream has been given so far."""

    def wait(self) -> None:
        """Whatever the current stream is given from now on runs after the mark; the host goes on."""

    def synchronize(self) -> None:
        """The host waits for the mark; an event that was never recorded is past."""


class Streams(Protocol):
    """The current stream of a device and one beside it."""

    def event(self) -> Event:
        """A new event."""

    def side(self) -> AbstractContextManager[None]:
        """Work given inside goes to the side stream, after all that the current stream has been given before."""


class HostStreams:
    """A CPU's: work is done when it has been given, so nothing ever waits."""

    def event(self) -> Event:
        """See Streams."""
        return _Past()

    @contextmanager
    def side(self) -> Iterator[None]:
        """See Streams."""
        yield


class CudaStreams:
    """A CUDA device's; both streams run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda
        self._device = device
        self._side = self._cuda.Stream(device)

    def event(self) -> Event:
        """See Streams."""
        event: Event = self._cuda.Event()
        return event

    @contextmanager
    def side(self) -> Iterator[None]:
        """See Streams."""
        self._side.wait_stream(self._cuda.current_stream(self._device))
        with self._cuda.stream(self._side):
            yield


class _Past:
    def record(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor; to a CUDA device it is copied on the current stream, and the host goes on.

    The array may be overwritten afterwards, but for a CPU: there the tensor shares its memory.
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def streams_of(device: torch.device) -> Streams:
    """The streams of a CUDA device, or a CPU's immediate ones."""
    return CudaStreams(device) if device.type == "cuda" else HostStreams()
