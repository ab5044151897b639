"""What the model says while a program runs, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .batch import Result
from .errors import LangError

__all__ = ["AsyncStream", "Piece", "Stream"]

T = TypeVar("T")
OnText = Callable[[str | None, str], None]
Start = Callable[[OnText], Coroutine[Any, Any, Result[T]]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text that a `gen` or `select` has said, and its variable, if it has one."""

    name: str | None
    text: str


class _Outcome(Generic[T]):
    """Where a stream leaves the run's state. Apart from the stream: one that is dropped must end at once."""

    result: Result[T] | None = None


class AsyncStream(Generic[T]):
    """The pieces of a run as an async iterator; closing or dropping it ends the run and aborts its requests.

    Iterating raises what the run raises.
    """

    def __init__(self, start: Start[T]) -> None:
        self._outcome: _Outcome[T] = _Outcome()
        self._pieces = _pieces(start, self._outcome)

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._pieces

    async def aclose(self) -> None:
        """Ends the run if it isn't over."""
        await self._pieces.aclose()

    @property
    def result(self) -> Result[T]:
        """The state of the run, once every piece has come; raises LangError before."""
        if self._outcome.result is None:
            raise LangError("the stream has not come to its end")
        return self._outcome.result


class Stream(Generic[T]):
    """The pieces of a run as an iterator; closing or dropping it ends the run and aborts its requests.

    The run goes on while somebody waits for the next piece. Iterating raises what the run raises.
    """

    def __init__(self, start: Start[T]) -> None:
        self._stream = AsyncStream(start)
        self._pieces = _blocking(self._stream)

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def close(self) -> None:
        """Ends the run if it isn't over."""
        self._pieces.close()

    @property
    def result(self) -> Result[T]:
        """The state of the run, once every piece has come; raises LangError before."""
        return self._stream.result


async def _pieces(start: Start[T], outcome: _Outcome[T]) -> AsyncGenerator[Piece, None]:
    arrived: asyncio.Queue[Piece | None] = asyncio.Queue()
    task = asyncio.create_task(start(lambda name, text: arrived.put_nowait(Piece(name, text))))
    task.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        while (piece := await arrived.get()) is not None:
            yield piece
        outcome.result = await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _blocking(stream: AsyncStream[T]) -> Generator[Piece, None, None]:
    with asyncio.Runner() as runner:
        pieces = aiter(stream)

        async def following() -> Piece | None:
            return await anext(pieces, None)

        try:
            while (piece := runner.run(following())) is not None:
                yield piece
        finally:
            runner.run(stream.aclose())
