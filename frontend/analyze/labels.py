"""A column of names as small integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .types import Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """One name for each request: `names[codes[r]]`; names are in the order of their first request."""

    codes: Int32Array
    names: tuple[str, ...]

    def of(self, request: int) -> str:
        return self.names[int(self.codes[request])]

    @property
    def is_informative(self) -> bool:
        """Whether it tells requests apart at all."""
        return len(self.names) > 1


class LabelBuilder:
    """Collects names, one for each request."""

    def __init__(self) -> None:
        self._code_of: dict[str, int] = {}
        self._codes: list[int] = []

    def add(self, name: str) -> None:
        self._codes.append(self._code_of.setdefault(name, len(self._code_of)))

    def build(self, order: NDArray[np.int64]) -> Labels:
        """The column with its requests put in `order`."""
        codes = np.array(self._codes, dtype=np.int32)[order]
        return Labels(codes, tuple(self._code_of))
