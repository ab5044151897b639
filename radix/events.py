"""Who is told when pages enter or leave the tree, or are reused."""

from typing import Protocol, runtime_checkable

from .lease import PrefixMatch
from .tokens import UInt64Array


class CacheListener(Protocol):
    """Gets the chain hashes of whole pages, in the call that stores or evicts them."""

    def stored(self, hashes: UInt64Array) -> None:
        """These pages can be reused from now on."""
        ...

    def evicted(self, hashes: UInt64Array) -> None:
        """These pages are gone."""
        ...


@runtime_checkable
class HitListener(CacheListener, Protocol):
    """A listener that also wants every hit."""

    def hit(self, match: PrefixMatch) -> None:
        """A request acquired this match; it may be empty."""
        ...


class Listeners:
    """The subscribers of one cache; telling nobody costs next to nothing."""

    def __init__(self) -> None:
        self._all: list[CacheListener] = []
        self._of_hits: list[HitListener] = []

    def add(self, listener: CacheListener) -> None:
        self._all.append(listener)
        if isinstance(listener, HitListener):
            self._of_hits.append(listener)

    def stored(self, hashes: UInt64Array) -> None:
        for listener in self._all:
            listener.stored(hashes)

    def evicted(self, hashes: UInt64Array) -> None:
        for listener in self._all:
            listener.evicted(hashes)

    def hit(self, match: PrefixMatch) -> None:
        for listener in self._of_hits:
            listener.hit(match)
