"""The order in which requests enter a backend: the one in which they share most."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedDict

__all__ = ["Key", "PrefixQueue", "Turnstile", "prefix_key"]

Key = tuple[bytes, int]
_numbers = count()


class Waiting(Protocol):
    """What can wait: `follows` marks a prompt that goes on behind an answer of the model, whose pages are warm."""

    @property
    def key(self) -> Key: ...

    @property
    def follows(self) -> bool: ...


W = TypeVar("W", bound=Waiting)


def prefix_key(prompt: bytes) -> Key:
    """The place of a prompt, given as bytes: those that begin alike stand together, equal ones as they came."""
    return prompt, next(_numbers)


class PrefixQueue(Generic[W]):
    """What waits, by its prompt: `pop` walks the tree of all that wait depth first, and goes round.

    Prompts sorted as byte strings *are* that walk: those that share a prefix stand together. A prompt that
    arrives behind the walk's place has its turn in the next round. What follows an answer goes first.
    O(log n) each.
    """

    def __init__(self) -> None:
        self._sorted: SortedDict[Key, W] = SortedDict()
        self._warm: deque[W] = deque()
        self._place: Key = (b"", -1)

    def __len__(self) -> int:
        return len(self._sorted) + len(self._warm)

    def add(self, waiting: W) -> None:
        if waiting.follows:
            self._warm.append(waiting)
        else:
            self._sorted[waiting.key] = waiting

    def pop(self) -> W:
        """The next one; the queue must not be empty."""
        if self._warm:
            return self._warm.popleft()
        index = self._sorted.bisect_right(self._place)
        waiting: W
        self._place, waiting = self._sorted.popitem(index if index < len(self._sorted) else 0)
        return waiting

    def discard(self, waiting: W) -> None:
        """Takes one out, if it is in."""
        if waiting in self._warm:
            self._warm.remove(waiting)
        self._sorted.pop(waiting.key, None)

    def drain(self) -> list[W]:
        """Takes out all."""
        left = [*self._warm, *self._sorted.values()]
        self._warm.clear()
        self._sorted.clear()
        return left


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    key: Key
    follows: bool
    admitted: asyncio.Future[None]


class Turnstile:
    """Lets at most `limit` in at a time, in the order of a `PrefixQueue`; belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: PrefixQueue[_Turn] = PrefixQueue()
        self._inside = 0

    @asynccontextmanager
    async def turn(self, prompt: bytes, follows: bool) -> AsyncIterator[None]:
        """Inside while the block runs."""
        loop = asyncio.get_running_loop()
        turn = _Turn(prefix_key(prompt), follows, loop.create_future())
        self._queue.add(turn)
        loop.call_soon(self._admit)  # not at once: the rest of a batch is on its way here
        try:
            await turn.admitted
            yield
        finally:
            if turn.admitted.done() and not turn.admitted.cancelled():
                self._inside -= 1
            else:
                self._queue.discard(turn)
            self._admit()

    def _admit(self) -> None:
        while self._queue and self._inside < self._limit:
            turn = self._queue.pop()
            if not turn.admitted.done():
                turn.admitted.set_result(None)
                self._inside += 1
