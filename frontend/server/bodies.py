"""Request bodies: bytes that may be anything in, plain JSON values out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from .errors import ApiError, ClientGone, invalid
from .settings import ServerSettings

__all__ = ["json_route", "parse_json"]

# Parsing more than this would hold up the event loop noticeably.
INLINE_BYTES = 64 * 1024
MAX_DEPTH = 64
# A body of up to this many times the limit is read to its end, and thrown away.
DISCARDED_LIMITS = 4


class _JsonRequest(Request):
    """A request whose body has been read and parsed under the server's limits."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self._value: Any = None

    async def load(self, settings: ServerSettings) -> None:
        """Reads and parses the body.

        Raises ApiError: 415 for what doesn't call itself JSON, 413, 408, and 400 for what can't be parsed.
        """
        self._require_json()
        try:
            async with asyncio.timeout(settings.body_timeout):
                self._body = await self._read(settings.max_body_bytes)
        except TimeoutError:
            message = f"the request body did not arrive within {settings.body_timeout:g} s"
            raise ApiError(408, message, code="request_timeout", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise ClientGone from None
        if len(self._body) > INLINE_BYTES:
            self._value = await asyncio.to_thread(parse_json, self._body)
        else:
            self._value = parse_json(self._body)

    async def json(self) -> Any:
        return self._value

    def _require_json(self) -> None:
        header = Message()
        header["content-type"] = self.headers.get("content-type", "")
        if header.get_content_type() != "application/json" or "content-type" not in self.headers:
            raise ApiError(415, "the Content-Type must be application/json", code="unsupported_media_type")
        if str(header.get_param("charset", "utf-8")).lower() not in ("utf-8", "utf8"):
            raise ApiError(415, "the body must be UTF-8", code="unsupported_media_type")

    async def _read(self, limit: int) -> bytes:
        """The body, or 413: before it is read where it says that it is far too large, else after throwing it away.

        Most clients send all before they read the answer, and would only see a reset connection otherwise.
        """
        stated = self.headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > limit * DISCARDED_LIMITS:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.stream():
            size += len(chunk)
            if size <= limit:
                chunks.append(chunk)
            elif size <= limit * DISCARDED_LIMITS:
                chunks.clear()
            else:
                break
        if size > limit:
            raise _too_large(limit)
        return b"".join(chunks)


def json_route(settings: ServerSettings) -> type[APIRoute]:
    """A route class whose bodies are JSON, read under the limits of `settings`."""

    class JsonRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()
            if self.body_field is None:
                return handler

            async def handle(request: Request) -> Response:
                loaded = _JsonRequest(request.scope, request.receive)
                await loaded.load(settings)
                return await handler(loaded)

            return handle

    return JsonRoute


def parse_json(body: bytes) -> Any:
    """The value of a JSON text; the last of equal keys wins.

    Raises ApiError (400) that names the byte, or the field, where it is no JSON, no UTF-8, nested deeper than
    64 levels or holds half of a surrogate pair.
    """
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.MsgspecError as error:
        raise _explained(body, str(error)) from None
    _check_depth(value)
    return value


def _explained(body: bytes, reason: str) -> ApiError:
    """Why the fast parser refused: bad bytes, bad syntax, half a surrogate pair, or what it said itself."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return invalid(f"the body is not UTF-8: invalid byte at offset {error.start}", code="invalid_utf8")
    try:
        value = json.loads(text)
    except RecursionError:
        return _too_deep()
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        return invalid(f"the body is not JSON: {error.msg} at byte {offset}", code="invalid_json")
    except ValueError:
        return invalid("the body holds a number with too many digits", code="invalid_json")
    found = _find_surrogate(value)
    if found is not None:
        path, position = found
        where = path or "the body"
        return invalid(
            f"{where} holds a lone surrogate at character {position}", path or None, "invalid_unicode"
        )
    return invalid(f"the body is not JSON: {reason}", code="invalid_json")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise _too_deep()


def _children(item: Any) -> list[Any]:
    """The values in a list or object that can hold values themselves."""
    if isinstance(item, dict):
        return [child for child in item.values() if isinstance(child, dict | list)]
    if isinstance(item, list):
        return [child for child in item if isinstance(child, dict | list)]
    return []


def _find_surrogate(value: Any) -> tuple[str, int] | None:
    """The path of the first string with half a surrogate pair, and the position in it."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError as error:
                return path, error.start
        elif isinstance(item, list):
            pending.extend((f"{path}[{index}]", child) for index, child in reversed(list(enumerate(item))))
        elif isinstance(item, dict):
            for key, child in reversed(item.items()):
                name = key.encode(errors="replace").decode()
                pending.append((f"{path}.{name}" if path else name, child))
                pending.append((path, key))
    return None


def _too_deep() -> ApiError:
    return invalid(f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {limit} bytes", code="body_too_large", headers={"Connection": "close"}
    )
