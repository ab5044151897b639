"""Real servers for tests: a process of its own, on a socket of its own."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from openai import OpenAI

DEADLINE = 30.0
START_DEADLINE = 120.0
_ADDRESS = re.compile(r"at (http://127\.0\.0\.1:\d+)/")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


class Server:
    """A `trunkline serve` process; `log` grows while it runs."""

    def __init__(self, model: Path | None, *options: str, key: str | None = None) -> None:
        command = [
            sys.executable,
            "-c",
            "from trunkline.frontend.cli import main; main()",
            "serve",
            "--port",
            "0",
        ]
        if model is not None:
            command += ["--model", str(model)]
        if key is not None:
            options = ("--api-key", key, *options)
        self.key = key
        self.log: list[str] = []
        self._address: str | None = None
        self._log_ended = False
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.client: httpx.Client
        self.name: str

    def started(self) -> "Server":
        """Waits until it serves; fails with its log if it ended instead."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._address or self._log_ended, START_DEADLINE), self.log
        assert self._address is not None, "\n".join(self.log)
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        self.client = httpx.Client(base_url=self._address, headers=headers, timeout=DEADLINE)
        self.name = self.client.get("/v1/models").json()["data"][0]["id"]
        return self

    @property
    def url(self) -> str:
        assert self._address is not None
        return self._address

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def openai(self) -> OpenAI:
        """The real client, which tries nothing twice."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0, timeout=DEADLINE)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """A POST of JSON."""
        return self.client.post(path, json=body, **options)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The answer to a greedy text completion, which must succeed."""
        return self._answer("/v1/completions", {"prompt": prompt, **fields})

    def chat(self, messages: Any, **fields: Any) -> dict[str, Any]:
        """The answer to a greedy chat completion, which must succeed."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self._answer("/v1/chat/completions", {"messages": messages, **fields})

    def _answer(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        response = self.post(path, {"model": self.name, "max_tokens": 4, "temperature": 0, **fields})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def metrics(self) -> dict[str, float]:
        """Every sample, by its name and labels as they are written."""
        found = {}
        for line in self.client.get("/metrics").text.splitlines():
            if match := _SAMPLE.match(line):
                found[match[1] + (f"{{{match[2]}}}" if match[2] else "")] = float(match[3])
        return found

    def wait_for(self, condition: Callable[[dict[str, float]], bool], seconds: float = DEADLINE) -> float:
        """Asks for the metrics until they meet the condition; how long that took, in seconds."""
        started = time.monotonic()
        while not condition(metrics := self.metrics()):
            assert time.monotonic() - started < seconds, metrics
        return time.monotonic() - started

    def wait_idle(self, seconds: float = DEADLINE) -> float:
        """Waits until nothing runs and no page is in use."""
        return self.wait_for(is_idle, seconds)

    def raw(self, data: bytes) -> bytes:
        """What the server answers to these bytes, until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE) as connection:
            connection.sendall(data)
            return read_all(connection)

    def wait_log(self, text: str, seconds: float = DEADLINE) -> str:
        """The first line of the log with `text`, now or soon."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in line for line in self.log), seconds), self.log
        return next(line for line in self.log if text in line)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def engine_pid(self) -> int:
        """The process that computes."""
        children = psutil.Process(self.process.pid).children()
        return max(children, key=lambda child: child.memory_info().rss).pid

    def memory(self) -> int:
        """Bytes that its two processes have in memory."""
        return sum(psutil.Process(pid).memory_info().rss for pid in (self.process.pid, self.engine_pid()))

    def wait_exit(self, seconds: float = DEADLINE) -> int:
        """The exit code, once it has ended."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def stop(self) -> int:
        """Ends it kindly."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait_exit()
        finally:
            self.process.kill()
            if hasattr(self, "client"):
                self.client.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._changed:
                    self.log.append(line.rstrip("\n"))
                    if found := _ADDRESS.search(line):
                        self._address = found[1]
                    self._changed.notify_all()
        with self._changed:
            self._log_ended = True
            self._changed.notify_all()


def is_idle(metrics: dict[str, float]) -> bool:
    """Whether nothing runs and every page is free or merely cached."""
    busy = ("trunkline_requests_running", "trunkline_requests_waiting", 'trunkline_pages{state="in_use"}')
    return not any(metrics[name] for name in busy)


def request_bytes(server: Server, path: str, body: bytes, *headers: str) -> bytes:
    """A POST of JSON as it goes over the wire, closed after the answer."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    if not any(header.lower().startswith("content-type") for header in headers):
        lines.append("Content-Type: application/json")
    if server.key is not None:
        lines.append(f"Authorization: Bearer {server.key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    chunks: list[bytes] = []
    while chunk := connection.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def events(text: str) -> Sequence[str]:
    """The data of server-sent events."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]
