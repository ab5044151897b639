"""`@function`: a Python function as a program of the language."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from .backends import Backend, resolve
from .batch import Batch, Result, as_call, run_all
from .errors import LangError
from .parts import Options, checked_options, merged_options
from .running import Run, in_program, wait
from .state import State
from .streaming import AsyncStream, OnText, Stream

if TYPE_CHECKING:
    from trunkline.runtime.engine import Engine

__all__ = ["Program", "function"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Body = Callable[Concatenate[State, P], R]
AsyncBody = Body[P, Coroutine[Any, Any, T]]


class Program(Generic[P, R, T]):
    """A function whose first argument is a state; made by `function`.

    R is what the function returns where it is called, T the value of a run: what a coroutine function gives in the end.
    """

    def __init__(
        self, body: Body[P, R], options: Options | None = None, backend: Backend | Engine | None = None
    ) -> None:
        self._body = body
        self._options = checked_options(options or {})
        self._backend = backend
        update_wrapper(self, body)

    def __call__(self, state: State, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function on a state: one program inside another, to be awaited if it is `async`."""
        return self._body(state, *args, **kwargs)

    def using(self, backend: Backend | Engine | None = None, **options: Unpack[Options]) -> Program[P, R, T]:
        """The same program with another backend, or with options for each `gen` that doesn't give its own."""
        return Program(
            self._body,
            merged_options(self._options, options),
            backend if backend is not None else self._backend,
        )

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        """Runs the program to its end and returns its state.

        Raises ProgramError where a step failed, with the step's line, and what the function itself raises.
        Inside a program that runs it is a run of its own, beside it.
        """
        result: Result[T] = blocking(self.arun(*args, **kwargs))
        return result

    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        """`run` for a caller that has an event loop; cancelling it aborts the run's requests."""
        return await self._one(None, *args, **kwargs)

    def run_batch(self, items: Iterable[Any], *, progress: bool = False) -> Batch[T]:
        """Runs the program for each item at the same time; results come in the order of the items.

        An item is the function's arguments: a mapping by name, a tuple by place, anything else as the only one. A
        run that fails is marked by its result's `error` and the rest goes on. The prompts of the whole batch are
        known before the first is computed, so that each prefix they share is computed once; `stats` of what is
        returned says what that saved. With `progress` a bar and, at the end, those figures go to stderr.
        """
        batch: Batch[T] = blocking(self.arun_batch(items, progress=progress))
        return batch

    async def arun_batch(
        self,
        items: Iterable[Any],
        *,
        progress: bool = False,
        finished: Callable[[int, Result[T]], None] | None = None,
    ) -> Batch[T]:
        """`run_batch` for a caller that has an event loop; `finished(number, result)` is called as each ends."""
        calls = [as_call(item) for item in items]
        async with resolve(self._backend) as entered:
            runs = [Run(entered, self._options) for _ in calls]
            results: list[Result[T]] = [Result(run) for run in runs]

            async def start(number: int, result: Result[T]) -> None:
                args, kwargs = calls[number]
                await self._drive(result, runs[number], args, kwargs)

            return await run_all(entered, start, results, runs, progress=progress, finished=finished)

    def run_stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        """Runs the program and hands out what the model says as it says it; `result` of the stream is its state."""
        if in_program():
            raise LangError("run_stream inside a program that runs: use run, or call the program on a state")
        return Stream(lambda on_text: self._one(on_text, *args, **kwargs))

    def astream(self, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]:
        """`run_stream` for a caller that has an event loop."""
        return AsyncStream(lambda on_text: self._one(on_text, *args, **kwargs))

    async def _one(self, on_text: OnText | None, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        async with resolve(self._backend) as entered:
            run = Run(entered, self._options, on_text)
            result: Result[T] = Result(run)
            try:
                await self._drive(result, run, args, kwargs)
            finally:
                entered.ended(run.number, more=False)
            return result

    async def _drive(self, result: Result[T], run: Run, args: Any, kwargs: Any) -> None:
        result.value = await run.drive(lambda: self._body(result, *args, **kwargs))


class _Maker(Protocol):
    """Makes programs of functions, `async` or not."""

    @overload
    def __call__(self, body: AsyncBody[P, T], /) -> Program[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, body: Body[P, T], /) -> Program[P, T, T]: ...


@overload
def function(body: AsyncBody[P, T], /) -> Program[P, Coroutine[Any, Any, T], T]: ...
@overload
def function(body: Body[P, T], /) -> Program[P, T, T]: ...
@overload
def function(**options: Unpack[Options]) -> _Maker: ...
def function(body: Any = None, /, **options: Unpack[Options]) -> Any:
    """Makes a program of a function, `async` or not, whose first argument is its state.

    `options` are for each `gen` in it.
    """
    if body is not None:
        return Program(body, options)
    return lambda body: Program(body, options)


def blocking(work: Any) -> Any:
    """Runs a coroutine to its end from code that isn't one: on a loop of its own, or inside the running program."""
    if in_program():
        return wait(asyncio.ensure_future(work))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise LangError("an event loop runs here: use `await program.arun(...)`, arun_batch or astream")
