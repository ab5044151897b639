"""Trunkline beside vLLM, llama.cpp and SGLang on this machine's CPU: the same client, the same text, in turns.

    python benchmarks/peers.py --folder DIR --install vllm llama.cpp sglang     # once; llama.cpp compiles for 20 minutes
    python benchmarks/peers.py --folder DIR --prepare                           # once: the forms of the model
    python benchmarks/peers.py --folder DIR --out peers.json
    python benchmarks/peers.py --out peers.json --report                        # the tables again

DIR/vllm, DIR/llama.cpp and DIR/sglang are virtual environments, or links to some; what is not there is left out. Each
repeat goes through the servers in another order and has words of its own. Each server starts anew for W1, W2, W3, W5
and S (a single stream), and again, with a KV cache of 4,096 tokens, for W4; a few other requests warm it up first. Every
run is written to the file as it ends, and runs that are in it are not repeated: an interrupted sitting goes on
where it stopped. In its turn the row "floor" measures the machine (limits.py) and has the least time of each workload.
Prints medians, and wall times by the floor and by each of ours. Nothing else should run: the driver waits for idle
cores, and notes the share of them that others took during a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.client import Target, first_model, run
from benchmarks.peer_servers.definitions import FLOOR, PEERS, SERVERS, Server, launch, missing, version
from benchmarks.peer_servers.report import notes, report
from benchmarks.peer_servers.running import CpuWatch, StartError, free_port, machine, serving, wait_until_idle
from benchmarks.peer_servers.setup import install, prepare_models
from benchmarks.workloads import WORKLOADS, Turn, Workload, build, words

LIMITS = Path(__file__).with_name("limits.py")
LARGE_CACHE, SMALL_CACHE = 131_072, 4_096
CACHES = {LARGE_CACHE: ("W1", "W2", "W3", "W5", "S"), SMALL_CACHE: ("W4",)}


class Results:
    """The runs of a file, which is written anew with each of them."""

    def __init__(self, path: Path) -> None:
        """Reads the file if it is there; exits where it holds another machine's runs."""
        self._path = path
        here = machine()
        content = json.loads(path.read_text()) if path.exists() else {"machine": here, "runs": []}
        for name in ("cpu", "cores"):
            if content["machine"][name] != here[name]:
                raise SystemExit(
                    f"{path} is of another machine: {content['machine'][name]}, not {here[name]}"
                )
        self.machine: dict[str, Any] = content["machine"]
        self.runs: list[dict[str, Any]] = content["runs"]

    def has(self, server: str, workload: str, repeat: int) -> bool:
        """Whether that run was made without errors."""
        key = (server, workload, repeat)
        return any((r["server"], r["workload"], r["repeat"]) == key and not r["errors"] for r in self.runs)

    def add(self, run: dict[str, Any]) -> None:
        """Takes a run in, instead of an earlier one of the same kind, which had errors."""
        same = ("server", "workload", "repeat")
        self.runs = [old for old in self.runs if any(old[name] != run[name] for name in same)]
        self.runs.append(run)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps({"machine": self.machine, "runs": self.runs}, indent=1))
        partial.replace(self._path)


@dataclass(frozen=True, slots=True)
class Sitting:
    """What is to be measured; `patience`: seconds to wait for idle cores before each start."""

    servers: Sequence[Server]
    workloads: Sequence[str]
    repeats: int
    folder: Path
    patience: float = 120.0
    failed: set[str] = field(default_factory=set)

    def measure(self, results: Results) -> None:
        """Makes the runs that the results lack."""
        for repeat, server, kv_tokens, workloads in self._order():
            todo = [name for name in workloads if not results.has(server.name, name, repeat)]
            if not todo or server.name in self.failed:
                continue
            if self.patience and (others := wait_until_idle(self.patience)) >= 0.1:
                print(f"before {server.name}: others keep {others} cores busy")
            if server is FLOOR:
                add_floors(todo, repeat, results)
                continue
            try:
                self._serve(server, kv_tokens, todo, repeat, results)
            except (StartError, OSError) as error:
                self.failed.add(server.name)
                print(f"{server.name}: left out: {error}")

    def _order(self) -> Iterator[tuple[int, Server, int, list[str]]]:
        step = max(1, len(self.servers) // self.repeats)
        for repeat in range(1, self.repeats + 1):
            first = (repeat - 1) * step % len(self.servers)
            for kv_tokens, group in CACHES.items():
                for server in [*self.servers[first:], *self.servers[:first]]:
                    wanted = [name for name in group if name in self.workloads]
                    yield (
                        repeat,
                        server,
                        kv_tokens,
                        [w for w in wanted if not server.only or w in server.only],
                    )

    def _serve(
        self, server: Server, kv_tokens: int, workloads: Sequence[str], repeat: int, results: Results
    ) -> None:
        port, load = free_port(), os.getloadavg()[0]
        ways = launch(server, self.folder, port, kv_tokens)
        common = {
            "version": version(server.program, self.folder),
            "kv_tokens": kv_tokens,
            "load_before": load,
        }
        with tempfile.TemporaryDirectory() as logs, serving(ways, port, Path(logs) / "log") as url:
            target = Target(url, first_model(url, None))
            asyncio.run(run(target, warm_up()))
            for name in workloads:
                figures = measured(target, build(name, repeat))
                results.add({"server": server.name, "workload": name, "repeat": repeat} | common | figures)
                print(f"{repeat} {name} {server.name}: {figures['wall_s']} s", flush=True)
                for note in notes(results.runs[-1:]):
                    print(f"  {note}")


def add_floors(workloads: Sequence[str], repeat: int, results: Results) -> None:
    """Measures the machine, and adds the floor of each workload as if it were a run."""
    watch = CpuWatch()
    found = subprocess.run(
        [sys.executable, str(LIMITS), "--json"], check=True, capture_output=True, text=True
    )
    company = watch.company()
    floors, number = json.loads(found.stdout), version(FLOOR.program, Path())
    for name in workloads:
        run = {
            "server": FLOOR.name,
            "workload": name,
            "repeat": repeat,
            "version": number,
        }
        figures = {"wall_s": round(floors[name], 3), "errors": 0, "output_tokens": 0, "asked_tokens": 0}
        results.add(run | figures | {"others": company.others, "stolen": company.stolen})
        print(f"{repeat} {name} {FLOOR.name}: {figures['wall_s']} s", flush=True)


def warm_up() -> Workload:
    """Four short requests, so that no workload pays for what a server does once."""
    rng = random.Random("warm up")
    return Workload(4, [[Turn(words(rng, 200), 8)] for _ in range(4)])


def measured(target: Target, workload: Workload) -> dict[str, Any]:
    """A run's figures, the tokens that were asked for, when it began and who else used the cores."""
    started, watch = time.time(), CpuWatch()
    figures = asyncio.run(run(target, workload))
    company = watch.company()
    asked = sum(turn.num_output for client in workload.clients for turn in client)
    others = {"others": company.others, "stolen": company.stolen, "started": round(started)}
    return figures | others | {"asked_tokens": asked}


def chosen(names: str | None, folder: Path) -> list[Server]:
    """The servers by name, all if there is none, less those that are not installed, each with a line."""
    known = {server.name: server for server in SERVERS}
    wanted = names.split(",") if names else list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"no server {unknown[0]}; known are {', '.join(known)}")
    found = []
    for server in map(known.__getitem__, wanted):
        if (reason := missing(server, folder)) is not None:
            print(f"{server.name}: left out: {reason}")
        else:
            found.append(server)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("build/peers"), help="where the peers are")
    parser.add_argument("--install", nargs="+", choices=list(PEERS), metavar="PEER", help="install, then end")
    parser.add_argument("--prepare", action="store_true", help="write the forms of the model, then end")
    parser.add_argument("--servers", help=f"of {', '.join(server.name for server in SERVERS)}; all if absent")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for idle cores")
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    parser.add_argument("--report", action="store_true", help="measure nothing, print the file's tables")
    options = parser.parse_args()
    folder = options.folder.absolute()
    for name in options.install or ():
        install(name, folder)
    if options.prepare:
        prepare_models(folder)
    if options.install or options.prepare:
        return
    workloads = options.workloads.split(",")
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        parser.error(f"no workload {unknown[0]}; known are {', '.join(WORKLOADS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the server ends too
    results = Results(options.out)
    print(", ".join(f"{name} {value}" for name, value in results.machine.items()))
    if not options.report:
        servers = chosen(options.servers, folder)
        Sitting(servers, workloads, options.repeats, folder, options.patience).measure(results)
    versions = {run["server"]: run["version"] for run in results.runs}
    print(", ".join(f"{server} {number}" for server, number in versions.items()))
    print(f"\n{report(results.runs)}")


if __name__ == "__main__":
    main()
