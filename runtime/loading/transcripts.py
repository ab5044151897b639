"""Conversations as the cache knows them: the tokens that were generated, not those their text would be cut into."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedList

__all__ = ["Transcripts"]

Int32Array = npt.NDArray[np.int32]
MAX_CHARACTERS = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Known:
    """The first `num_characters` of a text, and the tokens [tokens] int32 they stand for in the cache."""

    num_characters: int
    ids: Int32Array


NOTHING = Known(0, np.empty(0, dtype=np.int32))


class Transcripts:
    """Remembers which tokens the texts of recent conversations are.

    A model may spell a text in other tokens than the tokenizer would: then the next turn, rendered from text, leaves
    the cached path at the first such token. With the answer remembered, the next turn's prompt begins with the tokens
    that lie in the cache, and only what comes after them is tokenized. Texts of different `spaces` never meet.
    Safe to use from several threads.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        """`max_characters`: texts above that are forgotten, the longest unused first."""
        self._max_characters = max_characters
        self._num_characters = 0
        self._ids: OrderedDict[str, Int32Array] = OrderedDict()
        self._texts: SortedList[str] = SortedList()
        self._lock = threading.Lock()

    def remember(self, text: str, ids: Sequence[int] | Int32Array, space: str = "") -> None:
        """Notes that `text`, a rendered prompt and its answer, lies in the cache as `ids`."""
        key = _key(space, text)
        with self._lock:
            if key in self._ids:
                self._num_characters -= len(key)
            else:
                self._texts.add(key)
            self._ids[key] = np.asarray(ids, dtype=np.int32)
            self._ids.move_to_end(key)
            self._num_characters += len(key)
            while self._num_characters > self._max_characters:
                oldest, _ = self._ids.popitem(last=False)
                self._texts.remove(oldest)
                self._num_characters -= len(oldest)

    def longest(self, text: str, space: str = "") -> Known:
        """The longest remembered text that `text` begins with. O(log n) for each remembered branch on the way."""
        head, wanted = _key(space, ""), _key(space, text)
        with self._lock:
            while True:
                at = self._texts.bisect_right(wanted)
                if not at:
                    return NOTHING
                candidate: str = self._texts[at - 1]
                if not candidate.startswith(head):
                    return NOTHING
                if wanted.startswith(candidate):
                    self._ids.move_to_end(candidate)
                    return Known(len(candidate) - len(head), self._ids[candidate])
                wanted = _common_beginning(candidate, wanted)


def _key(space: str, text: str) -> str:
    return f"{space}\0{text}"


def _common_beginning(left: str, right: str) -> str:
    """By bisection: comparing slices is far quicker than comparing characters, and the texts are long."""
    shared, differs = 0, min(len(left), len(right)) + 1
    while shared + 1 < differs:
        middle = (shared + differs) // 2
        if left[:middle] == right[:middle]:
            shared = middle
        else:
            differs = middle
    return left[:shared]
