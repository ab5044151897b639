"""Times functions from outside: while a profile is taken they are wrapped, otherwise nothing of it exists."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Path", "Spans"]

Path = tuple[str, ...]
Name = str | Callable[..., str]


class Spans:
    """Seconds by the path of names that were open at the time; one thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[Path, float] = defaultdict(float)
        self._clock = clock
        self._path: Path = ()
        self._replaced: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, attribute: str, name: Name) -> None:
        """Times a function of a class or module until `restore`; the name may depend on its arguments."""
        original = owner.__dict__[attribute]
        self._replaced.append((owner, attribute, original))
        if isinstance(original, classmethod):
            setattr(owner, attribute, classmethod(self._timed(original.__func__, name)))
        else:
            setattr(owner, attribute, self._timed(original, name))

    @property
    def is_wrapping(self) -> bool:
        return bool(self._replaced)

    def restore(self) -> None:
        """Puts every function back."""
        for owner, attribute, original in reversed(self._replaced):
            setattr(owner, attribute, original)
        self._replaced.clear()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Times a block."""
        outer = self._path
        path = self._path = (*outer, name)
        started = self._clock()
        try:
            yield
        finally:
            self.seconds[path] += self._clock() - started
            self._path = outer

    def own(self) -> dict[Path, float]:
        """Seconds of each path without those of the paths below it."""
        own = dict(self.seconds)
        for path, seconds in self.seconds.items():
            if len(path) > 1:
                own[path[:-1]] -= seconds
        return own

    def _timed(self, original: Callable[..., Any], name: Name) -> Callable[..., Any]:
        clock, seconds = self._clock, self.seconds

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer = self._path
            path = self._path = (*outer, name if isinstance(name, str) else name(*args))
            started = clock()
            try:
                return original(*args, **kwargs)
            finally:
                seconds[path] += clock() - started
                self._path = outer

        return timed
