"""The scheduler: which tokens run next. Knows the prefix cache, no torch and no clock."""

from .config import SchedulerConfig
from .plan import PENDING_TOKEN, ScheduledRequest, SchedulePlan, StepResult, TokenOutput
from .request import FinishReason, Request, Status
from .scheduler import Scheduler
from .stats import SchedulerStats

__all__ = [
    "PENDING_TOKEN",
    "FinishReason",
    "Request",
    "SchedulePlan",
    "ScheduledRequest",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "Status",
    "StepResult",
    "TokenOutput",
]
