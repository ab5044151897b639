"""A headless Chromium, spoken to over pipes in its DevTools protocol."""

import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE = 30.0


class Browser:
    """One page; used as a context manager."""

    def __init__(self, profile: Path) -> None:
        assert EXECUTABLE is not None
        commands_read, self._commands = os.pipe()
        self._answers, answers_write = os.pipe()
        command = [
            EXECUTABLE,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--remote-debugging-pipe",
        ]
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec 3<&{commands_read} 4>&{answers_write}; exec "$@"',
                "-",
                *command,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(commands_read, answers_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_read)
        os.close(answers_write)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.problems: list[str] = []

    def __enter__(self) -> "Browser":
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        started = time.monotonic()
        while not (value := self.evaluate(script)):
            assert time.monotonic() - started < DEADLINE, (script, self.evaluate("document.body.innerText"))
        return value

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {} if self._session is None else {"sessionId": self._session}
        message = {"id": number, "method": method, "params": arguments, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            params = answer.get("params", {})
            if (
                answer.get("method") == "Runtime.exceptionThrown"
                or params.get("entry", {}).get("level") == "error"
            ):
                self.problems.append(json.dumps(params))
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._answers, 65536)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received
