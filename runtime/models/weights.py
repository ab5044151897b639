"""Parameters, and which tensor of a checkpoint fills which part of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trunkline.runtime.errors import LoadError

from .block_weights import Weight, dense
from .linear import Embedding, Form, Linear

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """What takes a tensor of a checkpoint, and the shape that it must have."""

    shape: tuple[int, ...]
    take: Callable[[Weight], Any]


class ParameterTable:
    """Has a place for each of a model's weights and fills them by their Hugging Face names, each exactly once.

    Parameters are allocated at once, linears as their weights come: those may end in another form, `form`.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, form: Form) -> None:
        self.dtype = dtype
        self.device = device
        self.form = form
        self._slots: dict[str, _Slot] = {}

    def fused(self, parts: Sequence[tuple[str, int]], *trailing: int) -> torch.Tensor:
        """A parameter [sum of rows, *trailing] of which each (name, rows) fills its rows, in this order."""
        rows = [count for _, count in parts]
        parameter = torch.empty(sum(rows), *trailing, dtype=self.dtype, device=self.device)
        for (name, _), part in zip(parts, torch.split(parameter, rows), strict=True):
            self._slots[name] = _Slot(tuple(part.shape), partial(_copy, part))
        return parameter

    def repeated(self, parts: Sequence[tuple[str, int]], size: int) -> torch.Tensor:
        """A parameter [sum of rows, size] of which each (name, rows) is given as [size], for all its rows."""
        parameter = self.fused(parts, size)
        for name, _ in parts:
            self._slots[name] = _Slot((size,), self._slots[name].take)
        return parameter

    def linear(
        self, parts: Sequence[tuple[str, int]], in_features: int, bias: bool = False, gated: bool = False
    ) -> Linear:
        """A linear layer of which each (name, rows) is a projection of the checkpoint: name.weight, name.bias."""
        linear = Linear(self.form, gated)
        wanted: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, in_features) for name, rows in parts}
        if bias:
            wanted |= {f"{name}.bias": (rows,) for name, rows in parts}
        found: dict[str, Weight] = {}

        def take(name: str, tensor: Weight) -> None:
            found[name] = tensor
            if len(found) < len(wanted):
                return
            biases = [dense(found[f"{name}.bias"]).to(self.device, self.dtype) for name, _ in parts if bias]
            linear.fill([found[f"{name}.weight"] for name, _ in parts], torch.cat(biases) if bias else None)
            found.clear()

        for name, shape in wanted.items():
            self._slots[name] = _Slot(shape, partial(take, name))
        return linear

    def embedding(self, name: str, rows: int, cols: int) -> Embedding:
        """An embedding [rows, cols] that name.weight fills."""
        embedding = Embedding(self.dtype, self.device)
        self._slots[f"{name}.weight"] = _Slot((rows, cols), embedding.fill)
        return embedding

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every weight that has a place."""
        return {name: slot.shape for name, slot in self._slots.items()}

    def load(self, weights: Iterable[tuple[str, Weight]]) -> None:
        """Puts (name, tensor) pairs into place, converting to the table's dtype.

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
            if tuple(tensor.shape) != slot.shape:
                raise LoadError(
                    f"weight {name} has shape {list(tensor.shape)}; the config asks for {list(slot.shape)}"
                )
            slot.take(tensor)
            del missing[name]
        if missing:
            raise LoadError(f"the checkpoint lacks {_enumerate(list(missing))}")
        if unexpected:
            raise LoadError(f"the checkpoint has weights the model doesn't know: {_enumerate(unexpected)}")


def _copy(part: torch.Tensor, weight: Weight) -> None:
    part.copy_(dense(weight))


def _enumerate(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
