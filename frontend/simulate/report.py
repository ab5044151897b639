"""Reports as a table for people and as JSON for programs."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from trunkline.scheduler.simulation_report import Distribution, SimulationReport

Reports = Mapping[str, SimulationReport]


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:,.1f} ms" if value < 10 else f"{value:,.1f} s"


def _of(
    pick: Callable[[SimulationReport], Distribution | None], name: str
) -> Callable[[SimulationReport], str]:
    def show(report: SimulationReport) -> str:
        distribution = pick(report)
        return _seconds(None if distribution is None else getattr(distribution, name))

    return show


_ROWS: Sequence[tuple[str, Callable[[SimulationReport], str]]] = (
    ("requests finished", lambda r: f"{r.num_finished:,}"),
    ("requests refused (larger than the KV cache)", lambda r: f"{r.num_refused:,}"),
    ("requests given up", lambda r: f"{r.num_failed:,}"),
    ("virtual time", lambda r: f"{r.seconds:,.1f} s"),
    ("steps", lambda r: f"{r.num_steps:,}"),
    ("output tokens/s", lambda r: f"{r.output_tokens_per_second:,.1f}"),
    ("prompt + output tokens/s", lambda r: f"{r.total_tokens_per_second:,.1f}"),
    ("TTFT p50", _of(lambda r: r.ttft, "p50")),
    ("TTFT p99", _of(lambda r: r.ttft, "p99")),
    ("ITL p50", _of(lambda r: r.itl, "p50")),
    ("ITL p99", _of(lambda r: r.itl, "p99")),
    ("end to end p50", _of(lambda r: r.end_to_end, "p50")),
    ("end to end p99", _of(lambda r: r.end_to_end, "p99")),
    ("hit rate (cached / all prompt tokens)", lambda r: f"{r.hit_rate:.2%}"),
    ("tokens computed", lambda r: f"{r.computed_tokens:,}"),
    ("KV memory held by running requests, mean", lambda r: f"{r.kv_in_use.mean:.1%}"),
    ("KV memory held by running requests, peak", lambda r: f"{r.kv_in_use.peak:.1%}"),
    ("KV memory with cached pages, mean", lambda r: f"{r.kv_occupied.mean:.1%}"),
    ("preemptions", lambda r: f"{r.num_preemptions:,}"),
    ("running requests, mean", lambda r: f"{r.running.mean:,.1f}"),
    ("running requests, peak", lambda r: f"{r.running.peak:,.0f}"),
    ("queued requests, mean", lambda r: f"{r.queued.mean:,.1f}"),
    ("queued requests, peak", lambda r: f"{r.queued.peak:,.0f}"),
)


def report_table(title: str, reports: Reports) -> Table:
    """One row a figure, one column a configuration."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in reports:
        table.add_column(name, justify="right")
    for label, show in _ROWS:
        table.add_row(label, *(show(report) for report in reports.values()))
    return table


def to_json(document: Mapping[str, Any]) -> str:
    """The document as JSON, equal for equal documents to the last byte."""
    return json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"


class LateProgress:
    """A progress bar on a terminal's stderr that shows up only when a run takes longer than two seconds."""

    DELAY_SECONDS = 2.0

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._started = clock()
        self._bar: Progress | None = None

    def __enter__(self) -> "LateProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_shown(self) -> bool:
        return self._bar is not None

    def run(self, name: str, total: int) -> Callable[[int, float], None]:
        """The listener for one simulation of `total` requests."""
        tasks: list[TaskID] = []

        def hear(done: int, virtual_seconds: float) -> None:
            if not self._console.is_terminal:
                return
            if not tasks and self._clock() - self._started < self.DELAY_SECONDS:
                return
            bar = self._start()
            if not tasks:
                tasks.append(bar.add_task(name, total=total))
            bar.update(tasks[0], completed=done, description=f"{name}, {virtual_seconds:,.0f} s")

        return hear

    def _start(self) -> Progress:
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
        return self._bar
