"""`@function`: a Python function as a program of the language."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from .backends import Backend, resolve
from .errors import LangError
from .parts import Options, checked_options
from .running import Run, in_program, wait
from .state import State

if TYPE_CHECKING:
    from trunkline.runtime.engine import Engine

__all__ = ["Program", "Result", "function"]

P = ParamSpec("P")
T = TypeVar("T")
Body = Callable[Concatenate[State, P], T]


class Result(State, Generic[T]):
    """The state of a run: once it is over, what was said and found, and `value`, what the function returned."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.value: T | None = None
        self.error: Exception | None = None
        """Why the run failed, in a batch; a single run raises it."""

    @property
    def ok(self) -> bool:
        """Whether the run came to its end."""
        return self.error is None


class Program(Generic[P, T]):
    """A function whose first argument is a state; made by `function`."""

    def __init__(
        self, body: Body[P, T], options: Options | None = None, backend: Backend | Engine | None = None
    ) -> None:
        self._body = body
        self._options = checked_options(options or {})
        self._backend = backend
        update_wrapper(self, body)

    def __call__(self, state: State, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function on a state: one program inside another."""
        return self._body(state, *args, **kwargs)

    def using(self, backend: Backend | Engine | None = None, **options: Unpack[Options]) -> Program[P, T]:
        """The same program with another backend, or with options for each `gen` that doesn't give its own."""
        merged: Options = {**self._options, **options}
        return Program(self._body, merged, backend if backend is not None else self._backend)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        """Runs the program to its end and returns its state.

        Raises ProgramError where a step failed, with the step's line, and what the function itself raises.
        Inside a program that runs it is a run of its own, beside it.
        """
        result: Result[T] = blocking(self.arun(*args, **kwargs))
        return result

    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        """`run` for a caller that has an event loop; cancelling it aborts the run's requests."""
        async with AsyncExitStack() as stack:
            run = Run(await stack.enter_async_context(resolve(self._backend)), self._options)
            return await self.drive(run, *args, **kwargs)

    async def drive(self, run: Run, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        """One run on a backend that has been entered."""
        result: Result[T] = Result(run)
        result.value = await run.drive(lambda: self._body(result, *args, **kwargs))
        return result


@overload
def function(body: Body[P, T], /) -> Program[P, T]: ...
@overload
def function(**options: Unpack[Options]) -> Callable[[Body[P, T]], Program[P, T]]: ...
def function(
    body: Body[P, T] | None = None, /, **options: Unpack[Options]
) -> Program[P, T] | Callable[[Body[P, T]], Program[P, T]]:
    """Makes a program of a function whose first argument is its state; `options` are for each `gen` in it."""
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
