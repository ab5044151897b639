"""A server's process from its start to its end, and who else uses the machine meanwhile."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

from benchmarks.peer_servers.definitions import Launch, num_cores

__all__ = ["CpuWatch", "StartError", "free_port", "machine", "serving", "wait_until_idle"]

START_LIMIT = 600.0
STOP_LIMIT = 20.0
# What a shell sets for its own programs, such as how threads wait, would change a peer's speed.
THREADING = ("OMP_", "KMP_", "MKL_", "GOMP_")


class StartError(Exception):
    """A server did not come up; has the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(launch: Launch, port: int, log: Path) -> Iterator[str]:
    """A server that answers, by its address; it and all its processes are gone afterwards. Raises StartError."""
    with log.open("w+", errors="replace") as file:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(THREADING)}
        process = subprocess.Popen(
            launch.command, env=environment | launch.environment, stdout=file, stderr=file, text=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_healthy(url, process, file)
            yield url
        finally:
            _stop(process)


def _wait_until_healthy(url: str, process: subprocess.Popen[str], log: IO[str]) -> None:
    ends = time.monotonic() + START_LIMIT
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    log.seek(0)
    state = "took too long" if process.poll() is None else f"ended with exit code {process.returncode}"
    raise StartError("\n".join([f"the server {state}", *log.read().splitlines()[-15:]]))


def _stop(process: subprocess.Popen[str]) -> None:
    """Asks the server to end, and ends whatever of its tree has not done so in time."""
    tree = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT)
        _, alive = psutil.wait_procs(tree, timeout=2)
        for child in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    if process.poll() is None:
        process.kill()
    process.wait()


@dataclass(frozen=True, slots=True)
class Company:
    """Cores that other programs kept busy, and that the hypervisor took away, on average."""

    others: float
    stolen: float


class CpuWatch:
    """Watches the machine's cores from its construction on."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._busy, self._own, self._stolen = _busy(), _own(), _stolen()

    def company(self) -> Company:
        """Who used the cores since then, beside this process and those below it."""
        seconds = time.perf_counter() - self._started
        others = _busy() - self._busy - (_own() - self._own)
        return Company(round(max(0.0, others) / seconds, 3), round((_stolen() - self._stolen) / seconds, 3))


def wait_until_idle(patience: float, share: float = 0.1) -> float:
    """Waits up to `patience` seconds for a second in which others kept less than `share` cores busy; the last share."""
    ends = time.monotonic() + patience
    while True:
        watch = CpuWatch()
        time.sleep(min(1.0, patience))
        others = watch.company().others
        if others < share or time.monotonic() >= ends:
            return others


def _busy() -> float:
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def _stolen() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _own() -> float:
    """CPU seconds of this process, those below it, and those below it that have ended."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def machine() -> dict[str, Any]:
    """What tells this machine from another."""
    return {
        "cpu": _cpu_name(),
        "cores": num_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
