"""Who is told when pages enter or leave the tree."""

from typing import Protocol

from .tokens import UInt64Array


class CacheListener(Protocol):
    """Gets the chain hashes of whole pages, synchronously."""

    def stored(self, hashes: UInt64Array) -> None:
        """These pages can be reused from now on."""
        ...

    def evicted(self, hashes: UInt64Array) -> None:
        """These pages are gone."""
        ...


class Listeners:
    """The subscribers of one cache; telling nobody costs next to nothing."""

    def __init__(self) -> None:
        self._listeners: list[CacheListener] = []

    def add(self, listener: CacheListener) -> None:
        self._listeners.append(listener)

    def stored(self, hashes: UInt64Array) -> None:
        for listener in self._listeners:
            listener.stored(hashes)

    def evicted(self, hashes: UInt64Array) -> None:
        for listener in self._listeners:
            listener.evicted(hashes)
