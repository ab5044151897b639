"""Parameters, and which tensor of a checkpoint fills which part of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from trunkline.runtime.errors import LoadError

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """A part of a parameter and the shape it has in a checkpoint (repeated where the part is larger)."""

    part: torch.Tensor
    shape: torch.Size


class ParameterTable:
    """Allocates a model's parameters and loads them by their Hugging Face names, each exactly once."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._slots: dict[str, _Slot] = {}
        self._when_loaded: list[Callable[[], None]] = []

    def fused(self, parts: Sequence[tuple[str, int]], *trailing: int) -> torch.Tensor:
        """A parameter [sum of rows, *trailing] of which each (name, rows) fills its rows, in this order."""
        rows = [count for _, count in parts]
        parameter = torch.empty(sum(rows), *trailing, dtype=self.dtype, device=self.device)
        for (name, _), part in zip(parts, torch.split(parameter, rows), strict=True):
            self._slots[name] = _Slot(part, part.shape)
        return parameter

    def repeated(self, parts: Sequence[tuple[str, int]], size: int) -> torch.Tensor:
        """A parameter [sum of rows, size] of which each (name, rows) is given as [size], for all its rows."""
        parameter = self.fused(parts, size)
        for name, _ in parts:
            self._slots[name] = _Slot(self._slots[name].part, torch.Size([size]))
        return parameter

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copies (name, tensor) pairs into place, converting to the table's dtype.

        Raises LoadError that names the tensors that are missing, unexpected, given twice or of a wrong shape.
        """
        missing, unexpected = dict.fromkeys(self._slots), []
        for name, tensor in weights:
            slot = self._slots.get(name)
            if slot is None:
                unexpected.append(name)
                continue
            if name not in missing:
                raise LoadError(f"weight {name} is given twice")
            if tensor.shape != slot.shape:
                raise LoadError(
                    f"weight {name} has shape {list(tensor.shape)}; the config asks for {list(slot.shape)}"
                )
            slot.part.copy_(tensor)
            del missing[name]
        if missing:
            raise LoadError(f"the checkpoint lacks {_enumerate(list(missing))}")
        if unexpected:
            raise LoadError(f"the checkpoint has weights the model doesn't know: {_enumerate(unexpected)}")
        self._slots.clear()  # its views would keep alive what is now brought into another form
        for prepare in self._when_loaded:
            prepare()

    def when_loaded(self, prepare: Callable[[], None]) -> None:
        """Calls `prepare` once the weights are in place, to bring them into another form."""
        self._when_loaded.append(prepare)


def _enumerate(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
