"""What the server remembers of one HTTP request while it lasts."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from starlette.requests import Request

__all__ = ["RequestRecord", "record_of"]


@dataclass(slots=True)
class RequestRecord:
    """One request, for its log line and the metrics.

    `outcome` is how it ended, where its status alone doesn't tell; `echoed_id` is what the client called it.
    """

    echoed_id: str
    started: float = field(default_factory=time.monotonic)
    outcome: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0

    def new_id(self, prefix: str) -> str:
        """An id of our own for the answer, unique whatever clients call their requests."""
        return f"{prefix}-{uuid.uuid4().hex}"


def record_of(request: Request) -> RequestRecord:
    """The record of a request that is being answered."""
    record: RequestRecord = request.scope["state"]["record"]
    return record
