"""Progress of long work: nothing for two seconds, then a bar on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Hear = Callable[[int], None]


class Listener(Protocol):
    """Is told what goes on."""

    def stage(self, name: str, total: int | None) -> Hear:
        """A stage of `total` units begins (None: nobody knows); call the result with the units done."""
        ...


class Silent:
    """Tells nobody."""

    def stage(self, name: str, total: int | None) -> Hear:
        return lambda done: None


class TerminalProgress:
    """A bar for each stage, once all together last longer than two seconds. A context manager."""

    DELAY_SECONDS = 2.0

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._is_shown = False

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._bar.stop()

    def stage(self, name: str, total: int | None) -> Hear:
        tasks: list[TaskID] = []

        def hear(done: int) -> None:
            if not self._is_shown:
                if self._clock() - self._started < self.DELAY_SECONDS:
                    return
                self._is_shown = True
                self._bar.start()
            if not tasks:
                tasks.append(self._bar.add_task(name, total=total))
            self._bar.update(tasks[0], completed=done)

        return hear
