"""Many sequences of tokens, and how much a new one shares with them."""

from __future__ import annotations

import numpy as np
from sortedcontainers import SortedList

from trunkline.radix.tokens import Int32Array, common_length

__all__ = ["Prefixes", "sequence_key"]


def sequence_key(tokens: Int32Array) -> bytes:
    """A sequence as bytes that sort like its tokens."""
    return tokens.astype(">i4").tobytes()


class Prefixes:
    """A multiset of token sequences, by their `sequence_key`.

    Sorted as byte strings, the sequence that shares most with another stands next to that one's place: each
    operation is O(log n) comparisons.
    """

    def __init__(self) -> None:
        self._sorted: SortedList[bytes] = SortedList()

    def add(self, key: bytes) -> None:
        self._sorted.add(key)

    def remove(self, key: bytes) -> None:
        """Takes one out that is in."""
        self._sorted.remove(key)

    def longest(self, key: bytes) -> int:
        """How many first tokens `key` shares with the sequence that shares most with it."""
        place = self._sorted.bisect_left(key)
        own = _tokens(key)
        return max(
            (common_length(own, _tokens(other)) for other in self._sorted[max(0, place - 1) : place + 1]),
            default=0,
        )


def _tokens(key: bytes) -> Int32Array:
    """In the key's own byte order, which is all the same for a comparison."""
    return np.frombuffer(key, dtype=np.int32)
