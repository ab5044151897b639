"""Reading the GGUF container: header, metadata and tensor table, without touching the tensor data.

A parser of our own, because the `gguf` package's reader makes several numpy views per vocabulary entry
and so takes seconds for a tokenizer; the constants and the dequantisers are the package's.

    magic "GGUF" | version u32 | n_tensors u64 | n_metadata u64 | metadata … | tensor table … | padding | data
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from trunkline.runtime.errors import LoadError

_SCALARS: Mapping[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies: `shape` outermost dimension first, `offset` in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


class GGUFFile:
    """One GGUF file: `metadata` (plain Python values, arrays as lists) and `tensors` by name.

    The data stays on disk until `raw(name)` maps it. Raises LoadError, naming the file, for anything
    that is not a whole little-endian GGUF file of version 2 or 3.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file can't be mapped
            raise LoadError(f"{path}: can't be read: {error}") from None
        cursor = _Cursor(self._map, path)
        num_tensors, num_metadata = _header(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_metadata):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("<u4"))
        if int(self.metadata.get("split.count", 1)) > 1:
            raise LoadError(f"{path}: is one part of a split GGUF model; join the parts into one file first")
        self.tensors = self._tensor_table(cursor, num_tensors)

    @property
    def architecture(self) -> str:
        """The file's `general.architecture`, "" when it names none."""
        return str(self.metadata.get("general.architecture", ""))

    def raw(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as stored, read-only: uint8 [num_bytes]."""
        return np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)

    def _tensor_table(self, cursor: _Cursor, count: int) -> dict[str, GGUFTensor]:
        rows = [_tensor_row(cursor) for _ in range(count)]
        alignment = int(self.metadata.get("general.alignment", 32))
        if alignment < 1:
            raise LoadError(f"{self.path}: general.alignment is {alignment}")
        start = -(-cursor.position // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in rows:
            block, block_bytes = GGML_QUANT_SIZES[kind]
            num_bytes = math.prod(shape) // block * block_bytes
            if start + offset + num_bytes > len(self._map):
                raise LoadError(
                    f"{self.path}: truncated: tensor {name!r} ends at byte {start + offset + num_bytes},"
                    f" the file at {len(self._map)}"
                )
            tensors[name] = GGUFTensor(name, shape, kind, start + offset, num_bytes)
        return tensors


class _Cursor:
    """Reads little-endian values one after the other; running off the end is a LoadError."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.position = 0
        self.path = path
        self._data = data

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise LoadError(
                f"{self.path}: truncated: the header needs byte {end}, the file ends at {len(self._data)}"
            )
        chunk = self._data[self.position : end]
        self.position = end
        return chunk

    def scalar(self, dtype: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(kind.itemsize), kind)[0].item()

    def count(self) -> int:
        (value,) = struct.unpack("<Q", self.take(8))
        return int(value)

    def string(self) -> str:
        return self.take(self.count()).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        raise LoadError(f"{self.path}: metadata of unknown type {kind} at byte {self.position}")

    def _array(self) -> list[Any]:
        kind, count = self.scalar("<u4"), self.count()
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
            return values
        raise LoadError(f"{self.path}: metadata array of unknown type {kind} at byte {self.position}")


def _header(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; the numbers of tensors and of metadata entries."""
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise LoadError(f"{cursor.path}: not a GGUF file (it begins with {magic!r})")
    version = cursor.scalar("<u4")
    if version not in (2, 3):
        raise LoadError(
            f"{cursor.path}: GGUF version {version} is not supported (2 and 3, little-endian, are)"
        )
    return cursor.count(), cursor.count()


def _tensor_row(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name = cursor.string()
    num_dimensions = cursor.scalar("<u4")
    if num_dimensions > 4:
        raise LoadError(f"{cursor.path}: tensor {name!r} has {num_dimensions} dimensions, GGUF allows 4")
    shape = tuple(cursor.count() for _ in range(num_dimensions))[::-1]
    number = cursor.scalar("<u4")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise LoadError(f"{cursor.path}: tensor {name!r} has unknown quantisation type {number}") from None
    block, _ = GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % block:
        raise LoadError(
            f"{cursor.path}: tensor {name!r}: rows of {shape[-1]} are not whole {kind.name} blocks of {block}"
        )
    return name, shape, kind, cursor.count()
