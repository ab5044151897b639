"""An OpenAI-compatible endpoint for tests: a few lines of HTTP on a local socket, told what to answer."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

Handler = Callable[[str, dict[str, Any]], Any]
STALL = object()


class Endpoint:
    """`handler(path, body)` gives a JSON value, (status, JSON value), bytes for an event stream, or STALL."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.bodies: list[dict[str, Any]] = []
        self.num_open = 0
        self.num_dropped = 0
        self.all_dropped = asyncio.Event()
        self.all_dropped.set()

    async def __aenter__(self) -> "Endpoint":
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lengths = [
                line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length")
            ]
            body = json.loads(await reader.readexactly(int(lengths[0]))) if lengths else {}
            path = head.split()[1]
            self.bodies.append(body)
            answer = self._handler(path, body)
            if answer is STALL:
                await self._stall(reader)
                return
            status, value = answer if isinstance(answer, tuple) else (200, answer)
            streamed = isinstance(value, bytes)
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            kind = "text/event-stream" if streamed else "application/json"
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + data
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _stall(self, reader: asyncio.StreamReader) -> None:
        """Says nothing until the client has gone."""
        self.num_open += 1
        self.all_dropped.clear()
        try:
            await reader.read()
        finally:
            self.num_dropped += 1
            if self.num_dropped == self.num_open:
                self.all_dropped.set()


def completion(text: str, **more: Any) -> dict[str, Any]:
    """A text completion as OpenAI answers it."""
    choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    return {
        "id": "1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
        **more,
    }
