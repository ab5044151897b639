"""One run of a program: a coroutine in which the function itself may wait without being `async`.

The function runs on a greenlet; where it needs what the model has not said yet, it hands the awaitable to the
run's task and is resumed with the outcome (the bridge of SQLAlchemy's asyncio extension). There are no threads.
A function that is `async` runs there too, and what it awaits takes the same way: so it may do both.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
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
_numbers = itertools.count(1)
_HERE = str(Path(__file__).parent)  # as frames name it, links and all


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
            "the program that this state belongs to still runs: its results can be read when it is done, or in another"
            " task of it after `await state.done()`"
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
        self.number = next(_numbers)
        self.states: list[State] = []
        self.served: list[Served] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins to work off a state's steps."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drive(self, body: Callable[[], Any]) -> Any:
        """Runs the function, `async` or not, and then whatever its states have left to do, also forks nobody joined.

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


class _Yielded:
    """What a coroutine yielded to its task, to be yielded by another coroutine of that task."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self.value)


def _run(body: Callable[[], Any]) -> Any:
    """Calls the function, in its greenlet, and where that gave a coroutine runs it to its end."""
    value = body()
    if not inspect.iscoroutine(value):
        return value
    resume, outcome = value.send, None
    while True:
        try:
            yielded = resume(outcome)
        except StopIteration as end:
            return end.value
        try:
            resume, outcome = value.send, wait(_Yielded(yielded))
        except BaseException as error:
            resume, outcome = value.throw, error


async def _drive(body: Callable[[], Any]) -> Any:
    program = _Program(lambda: _run(body))
    program.gr_context = contextvars.copy_context()
    awaitable = program.switch()
    while not program.dead:
        try:
            value = await awaitable
        except BaseException as error:
            awaitable = program.throw(error)
        else:
            awaitable = program.switch(value)
    return awaitable
