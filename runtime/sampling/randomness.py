"""Random numbers that are a pure function of a seed and a position.

No generator has a state, so nothing that happens to a request (its batch, chunks, preemptions, a resumption
elsewhere) can move its numbers. The mixing function is splitmix64's (Steele, Lea and Flood, 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["derive_seed", "uniforms"]

UInt64Array = npt.NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
CHOICE = np.uint64(0xD1B54A32D192ED03)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """Float64 numbers in [0, 1), of 53 random bits, one for each pair of an int64 seed and a position."""
    numbers = _mix(_mix(_words(seeds)) + GOLDEN * (_words(positions) + np.uint64(1)))
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derive_seed(seed: int, choice: int) -> int:
    """The int64 seed of a request's choice number `choice`: the request's own for 0, a mix for the others."""
    if choice == 0:
        return seed
    mixed = _mix(_mix(_words([seed]) ^ CHOICE) + CHOICE * _words([choice]))
    return int(mixed.view(np.int64)[0])


def _words(values: Sequence[int]) -> UInt64Array:
    return np.asarray(values, dtype=np.int64).view(np.uint64)


def _mix(words: UInt64Array) -> UInt64Array:
    """splitmix64's finaliser: a bijection whose output bits each depend on all input bits."""
    words = words + GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
