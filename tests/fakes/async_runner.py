"""A device that is late: nothing of a step exists before its result is asked for."""

from collections import deque

from trunkline.runtime.engine.background import detached
from trunkline.runtime.engine.launched_step import RunnerOutput
from trunkline.runtime.engine.runner import ModelRunner
from trunkline.scheduler import PENDING_TOKEN, SchedulePlan


class FakeAsyncRunner:
    """Passes plans on to a runner when their results are asked for, in the order of their launch.

    A plan is run as it was at its launch. So a token that was not known then is `PENDING_TOKEN`, which no embedding
    has, unless the runner fills it in from what the step before sampled.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.launched: deque[LateStep] = deque()
        self.num_pending = 0
        self.num_ahead = 0

    def launch(self, plan: SchedulePlan) -> "LateStep":
        assert len(self.launched) < 2
        for row in plan.scheduled:
            assert (row.history[-1] == PENDING_TOKEN) == row.pending
            assert (row.history[:-1] >= 0).all()
            assert not row.pending or row.tokens.tolist() == [PENDING_TOKEN]
        self.num_pending += sum(row.pending for row in plan.scheduled)
        self.num_ahead += len(self.launched)
        self.launched.append(LateStep(self, detached(plan)))
        return self.launched[-1]

    def run(self, step: "LateStep") -> RunnerOutput:
        assert self.launched.popleft() is step, "results are asked out of order"
        return self._runner.launch(step.plan).result()


class LateStep:
    """The handle of a step that has not run."""

    def __init__(self, runner: FakeAsyncRunner, plan: SchedulePlan) -> None:
        self._runner = runner
        self.plan = plan

    def result(self) -> RunnerOutput:
        return self._runner.run(self)
