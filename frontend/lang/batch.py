"""Many runs of one program at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .backends import Backend
from .report import BatchStats
from .running import Run
from .state import State

__all__ = ["Batch", "Result", "as_call", "run_all"]

T = TypeVar("T")


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


class Batch(Sequence[Result[T]]):
    """The results of a batch in the order of its items, failed ones marked by `error`, and what it cost."""

    def __init__(self, results: Sequence[Result[T]], stats: BatchStats) -> None:
        self._results = results
        self.stats = stats

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> Result[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Result[T]]: ...
    def __getitem__(self, index: int | slice) -> Result[T] | Sequence[Result[T]]:
        return self._results[index]


def as_call(item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An item as arguments: a mapping by name, a tuple by place, anything else as the only one."""
    if isinstance(item, Mapping):
        return (), dict(item)
    return (item, {}) if isinstance(item, tuple) else ((item,), {})


async def run_all(
    backend: Backend,
    start: Callable[[int, Result[T]], Any],
    results: Sequence[Result[T]],
    runs: Sequence[Run],
    *,
    progress: bool,
    finished: Callable[[int, Result[T]], None] | None = None,
) -> Batch[T]:
    """Awaits `start(number, result)` for every result, all at once; one that fails is marked, the rest go on.

    All programs reach their first call of the model before any of those calls is served: so a backend sees the
    prompts of the whole batch. A cancellation cancels every run.
    """
    num_left = len(results)
    with _bar(len(results), hidden=not progress) as advance:

        async def one(number: int, result: Result[T]) -> None:
            nonlocal num_left
            try:
                await start(number, result)
            except Exception as error:
                result.error = error
            finally:
                num_left -= 1
                backend.ended(runs[number].number, more=num_left > 0)
            if finished is not None:
                finished(number, result)
            advance()

        tasks = [asyncio.create_task(one(number, result)) for number, result in enumerate(results)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    num_failed = sum(not result.ok for result in results)
    stats = BatchStats.of(len(results), num_failed, [one for run in runs for one in run.served])
    if progress:
        Console(stderr=True).print(str(stats), highlight=False)
    return Batch(results, stats)


@contextmanager
def _bar(total: int, hidden: bool) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=hidden) as bar:
        task = bar.add_task("programs", total=total)
        yield lambda: bar.advance(task)
