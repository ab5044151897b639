"""How many requests may wait, and what to tell the others."""

from __future__ import annotations

import math
from types import TracebackType

from .errors import ApiError, overloaded

__all__ = ["Place", "WaitingRoom"]

LONGEST_RETRY = 60
WEIGHT_OF_NEWEST = 0.1


class WaitingRoom:
    """Counts the requests that wait for their first token and refuses those above a limit."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._typical_wait = 1.0
        self._closed: ApiError | None = None
        self.num_waiting = 0

    @property
    def is_open(self) -> bool:
        """Whether anything new is taken at all."""
        return self._closed is None

    def close(self, reason: ApiError) -> None:
        """From now on everything new is refused with `reason`."""
        self._closed = reason

    def enter(self) -> Place:
        """A place in the queue, to be used as a context manager.

        Raises ApiError (503) when the room is full, with a time after which to try again, or closed.
        """
        if self._closed is not None:
            raise self._closed
        if self.num_waiting >= self._capacity:
            retry_after = min(LONGEST_RETRY, max(1, math.ceil(self._typical_wait)))
            raise overloaded(
                f"{self._capacity} requests are waiting already, which is the limit", retry_after
            )
        return Place(self)

    def leave(self, waited: float | None) -> None:
        """One waits no longer; `waited` seconds, if it got what it waited for."""
        self.num_waiting -= 1
        if waited is not None:
            self._typical_wait += WEIGHT_OF_NEWEST * (waited - self._typical_wait)


class Place:
    """One request's place: it waits until it is `served`, or gives up."""

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        self._waiting = True
        room.num_waiting += 1

    def served(self, waited: float | None) -> None:
        """The first token is there, after `waited` seconds; None: it will never be."""
        if self._waiting:
            self._waiting = False
            self._room.leave(waited)

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.served(None)
