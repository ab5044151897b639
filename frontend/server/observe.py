"""The outermost layer: an id, a log line and a metric for each request, an answer to whatever is raised."""

from __future__ import annotations

import logging
import string
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import error_response, from_exception
from .metrics import Metrics
from .record import RequestRecord

__all__ = ["Observe", "bounded_id"]

logger = logging.getLogger(__name__)

MAX_ID_CHARACTERS = 128
ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-_.:/+=")


class Observe:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(bounded_id(Headers(scope=scope).get("x-request-id")))
        scope.setdefault("state", {})["record"] = record
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.echoed_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            logger.exception("request %s failed", record.echoed_id)
            if status is None:
                await error_response(from_exception(error))(scope, receive, send_with_id)
        finally:
            self._note(scope, record, status)

    def _note(self, scope: Scope, record: RequestRecord, status: int | None) -> None:
        seconds = time.monotonic() - record.started
        outcome = record.outcome or _outcome(status)
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.ended(route, outcome, record, seconds)
        logger.info(
            "%s %s %s %s %s %.3f s, %d prompt tokens of which %d cached, %d generated",
            record.echoed_id,
            scope["method"],
            scope["path"],
            status,
            outcome,
            seconds,
            record.num_prompt_tokens,
            record.num_cached_tokens,
            record.num_output_tokens,
        )


def bounded_id(stated: str | None) -> str:
    """The id by which a client knows its request: its own, cut to 128 harmless characters, or a new one."""
    kept = "".join(
        character for character in (stated or "")[:MAX_ID_CHARACTERS] if character in ID_CHARACTERS
    )
    return kept or uuid.uuid4().hex


def _outcome(status: int | None) -> str:
    match status:
        case None:
            return "disconnected"
        case 499:
            return "disconnected"
        case 503:
            return "overloaded"
        case _ if status < 400:
            return "ok"
        case _ if status < 500:
            return "refused"
        case _:
            return "failed"
