"""The C++ kernels of csrc/: which of their levels this machine runs, and their calls.

The libraries are loaded with ctypes and given `data_ptr()`s: they know nothing of torch, and torch's ABI
nothing of them. Their threads are those of the OpenMP runtime that torch has loaded.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

from trunkline.errors import ConfigError

from .errors import AttentionError
from .structs import (
    STORAGE,
    BlockRows,
    DecoderModel,
    DecoderStep,
    Layer,
    LinearJob,
    Norm,
    RotaryStore,
    Shape,
    SiluMul,
    Step,
    Store,
)

LEVELS = ("plain", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx")
_LEVEL_VARIABLE = "TRUNKLINE_CPU_LEVEL"


class NativeUnavailable(AttentionError, RuntimeError):
    """The native kernels cannot be used here; the message says why."""


_CALLS: dict[str, list[Any]] = {
    "attention_new": [ctypes.POINTER(Shape)],
    "attention_free": [ctypes.c_void_p],
    "attention_plan": [ctypes.c_void_p, ctypes.POINTER(Step)],
    "attention_run": [ctypes.c_void_p, ctypes.POINTER(Layer)],
    "decoder_new": [ctypes.POINTER(DecoderModel)],
    "decoder_free": [ctypes.c_void_p],
    "decoder_run": [ctypes.c_void_p, ctypes.POINTER(DecoderStep)],
    "linear": [ctypes.POINTER(LinearJob)],
    "norm": [ctypes.POINTER(Norm)],
    "silu_mul": [ctypes.POINTER(SiluMul)],
    "rotary_store": [ctypes.POINTER(RotaryStore)],
    "store": [ctypes.POINTER(Store)],
    "block_rows": [ctypes.POINTER(BlockRows)],
}


class Library:
    """The kernels of one level; each call takes one of the structures above, filled."""

    attention_new: Callable[[Shape], int]
    attention_free: Callable[[ctypes.c_void_p], None]
    attention_plan: Callable[[ctypes.c_void_p, Step], None]
    attention_run: Callable[[ctypes.c_void_p, Layer], None]
    decoder_new: Callable[[DecoderModel], int]
    decoder_free: Callable[[ctypes.c_void_p], None]
    decoder_run: Callable[[ctypes.c_void_p, DecoderStep], None]
    linear: Callable[[LinearJob], None]
    norm: Callable[[Norm], None]
    silu_mul: Callable[[SiluMul], None]
    rotary_store: Callable[[RotaryStore], None]
    store: Callable[[Store], None]
    block_rows: Callable[[BlockRows], None]

    def __init__(self, level: str) -> None:
        self.level = level
        self._lib = _open(level)
        self.width: int = self._lib.trunkline_width()  # lanes of a vector
        for name, arguments in _CALLS.items():
            function = self._lib[f"trunkline_{name}"]
            function.argtypes = arguments
            function.restype = ctypes.c_void_p if name.endswith("_new") else None
            setattr(self, name, function)


def machine_levels() -> Sequence[str]:
    """The levels that this machine's CPU and kernel run, lowest first; raises NativeUnavailable."""
    return LEVELS[: _open("plain").trunkline_cpu_level() + 1]


def library(level: str | None = None) -> Library:
    """The kernels of a level; of the best one that was compiled and runs here where None is given.

    The environment variable TRUNKLINE_CPU_LEVEL stands in for None. Raises NativeUnavailable where there
    is nothing to load, ConfigError for a level that is unknown or above the machine's.
    """
    return _library(level or os.environ.get(_LEVEL_VARIABLE))


@cache
def _library(level: str | None) -> Library:
    runnable = machine_levels()
    if level is None:
        return Library([name for name in runnable if _file(name) is not None][-1])
    if level not in LEVELS:
        raise ConfigError(f"CPU level {level!r} is none of {', '.join(LEVELS)}")
    if level not in runnable:
        raise ConfigError(f"CPU level {level!r} is above this machine's, {runnable[-1]!r}")
    return Library(level)


@cache
def unavailable() -> str | None:
    """Why the native kernels cannot be used, None where they can."""
    try:
        library()
    except NativeUnavailable as error:
        return str(error)
    return None


def supports(dtype: torch.dtype) -> bool:
    """Whether there are kernels for this dtype and this machine can load them."""
    return dtype in STORAGE and unavailable() is None


def clear() -> None:
    """Forgets what was found, so that the next call looks again; what is mapped stays mapped."""
    for function in (_library, _open, unavailable):
        function.cache_clear()


def _file(level: str) -> Path | None:
    folder = Path(__file__).parent
    candidates = (folder / f"_native_{level}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.exists()), None)


@cache
def _open(level: str) -> ctypes.CDLL:
    path = _file(level)
    if path is None:
        raise NativeUnavailable(
            f"the native kernels ({level}) were not compiled when Trunkline was installed: that takes Linux "
            f"and a C++17 compiler; install one and reinstall"
        )
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"the native kernels ({level}) cannot be loaded: {error}") from error
