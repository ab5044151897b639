"""One run of a program: a coroutine in which the function itself may wait without being `async`.

The function runs on a greenlet; where it needs what the model has not said yet, it hands the awaitable to the
run's task and is resumed with the outcome (the bridge of SQLAlchemy's asyncio extension). There are no threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from greenlet import getcurrent, greenlet

from .backends import Backend, Served
from .errors import LangError, Position
from .parts import Options

if TYPE_CHECKING:
    from .state import State

__all__ = ["Run", "caller", "in_program", "wait"]

T = TypeVar("T")
_HERE = str(Path(__file__).resolve().parent)


class _Program(greenlet):
    """The greenlet of a program, which alone may wait."""


def in_program() -> bool:
    """Whether the caller is (called by) a program that runs."""
    return isinstance(getcurrent(), _Program)


def wait(awaitable: Awaitable[T]) -> T:
    """Suspends the program until the awaitable is done, and returns or raises its outcome.

    Raises LangError outside of a program that runs.
    """
    current = getcurrent()
    if not isinstance(current, _Program):
        raise LangError(
            "the program that this state belongs to still runs; its results can be read when it is done"
        )
    assert current.parent is not None
    return cast(T, current.parent.switch(awaitable))


def caller() -> Position:
    """The line outside of the language that called into it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return Position(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class Run:
    """What the states of one run share: where the model is, what is running, what it cost."""

    def __init__(
        self, backend: Backend, options: Options, on_text: Callable[[str | None, str], None] | None = None
    ) -> None:
        self.backend = backend
        self.options = options
        self.on_text = on_text
        self.states: list[State] = []
        self.served: list[Served] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins to work off a state's steps."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drive(self, body: Callable[[], T]) -> T:
        """Runs the function and then whatever its states have left to do, forks that nobody joined included.

        Raises what the function raises, or the first failure of a state that nobody has seen. Whatever ends it
        early ends every request of the run.
        """
        try:
            value = await _drive(body)
            await self._finish()
        finally:
            left = list(self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for state in self.states:
                state.abandon()
        return value

    async def _finish(self) -> None:
        for state in self.states:  # a state's work never adds one
            await state.done()
        for state in self.states:
            state.raise_unseen()


async def _drive(body: Callable[[], T]) -> T:
    program = _Program(body)
    program.gr_context = contextvars.copy_context()
    awaitable = program.switch()
    while not program.dead:
        try:
            value = await awaitable
        except BaseException as error:
            awaitable = program.throw(error)
        else:
            awaitable = program.switch(value)
    return cast(T, awaitable)
