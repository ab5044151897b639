"""Steps in a thread, for devices that don't queue work by themselves."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from trunkline.scheduler import SchedulePlan

from .launched_step import RunnerOutput
from .runner import ModelRunner

__all__ = ["BackgroundRunner", "detached"]


class BackgroundRunner:
    """Runs a `ModelRunner` in one thread, a step after the other, while the caller plans and decodes text."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trunkline-steps")

    def launch(self, plan: SchedulePlan) -> Future[RunnerOutput]:
        """Queues a step; the plan's arrays are not needed any more when this returns."""
        return self._thread.submit(self._run, detached(plan))

    def _run(self, plan: SchedulePlan) -> RunnerOutput:
        return self._runner.launch(plan).result()


def detached(plan: SchedulePlan) -> SchedulePlan:
    """The plan with arrays of its own, which the scheduler's next calls don't change."""
    rows = [
        row._replace(tokens=row.tokens.copy(), pages=row.pages.copy(), history=row.history.copy())
        for row in plan.scheduled
    ]
    return replace(plan, scheduled=tuple(rows))
