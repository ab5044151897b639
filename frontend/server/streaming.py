"""Answers that take their time: server-sent events, and clients that leave before the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ClientGone, error_body, from_exception
from .record import RequestRecord

__all__ = ["DONE", "EventStream", "event", "unless_gone"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One server-sent event of JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits `work`, and cancels it as soon as the client closes its connection.

    Raises ClientGone then. The request's body must have been read.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events as they are made; what goes wrong after the first byte becomes an event of its own.

    `closing` is awaited in the end, however that comes about. A reader who leaves the socket's buffer full
    for longer than `write_timeout` seconds is cut off.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        closing: Callable[[], Awaitable[None]],
        record: RequestRecord,
        write_timeout: float | None,
    ) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._events = events
        self._closing = closing
        self._record = record
        self._write_timeout = write_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await unless_gone(receive, self._write(send))
        except ClientGone:
            self._record.outcome = "disconnected"
        finally:
            await self._closing()

    async def _write(self, send: Send) -> None:
        try:
            async for data in self._events:
                await self._send(send, data)
        except (ClientGone, TimeoutError):
            self._record.outcome = "disconnected"
            raise ClientGone from None
        except Exception as error:
            answer = from_exception(error)
            if answer.code == "internal_error":
                logger.exception("a stream broke off")
            self._record.outcome = answer.code or "failed"
            await self._send(send, event(error_body(answer)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(self._write_timeout):
            await send({"type": "http.response.body", "body": data, "more_body": True})
