"""What the server costs over the engine alone: W1 in this process and over HTTP, in turns.

    python benchmarks/overhead.py --repeat 5

Each pair of runs has words of its own, so both begin with a cold prefix; the pair's order changes from one to the next.
The HTTP client shares the cores with the server, as it would on a person's machine. Prints wall seconds of each run and
the median ratio. `--threads N` gives torch fewer threads, in both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import deque

import torch

from benchmarks.client import Target, first_model, run
from benchmarks.workloads import Workload, build
from trunkline import Engine, EngineConfig, SamplingParams

KV_TOKENS = 65536


def offline(engine: Engine, workload: Workload) -> float:
    """Seconds for the workload's prompts through `Engine.step`, as many at a time as the clients would send."""
    turns = [turn for client in workload.clients for turn in client]
    started = time.perf_counter()
    running = 0
    while turns or running:
        while turns and running < workload.concurrency:
            turn = turns.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=turn.num_output, ignore_eos=True)
            engine.add_request(turn.text, params)
            running += 1
        running -= sum(output.last for output in engine.step())
    return time.perf_counter() - started


def start_server(dtype: str) -> tuple[subprocess.Popen[str], str]:
    """A `trunkline serve` process on a free port, and its address."""
    command = [sys.executable, "-c", "from trunkline.frontend.cli import main; main()", "serve"]
    options = ["--port", "0", "--kv-cache-tokens", str(KV_TOKENS), "--dtype", dtype]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    log = process.stderr
    assert log is not None
    for line in log:
        if found := re.search(r"at (http://\S+)/$", line.rstrip()):
            threading.Thread(
                target=lambda: deque(log, maxlen=0), daemon=True
            ).start()  # a full pipe would stop it
            return process, found[1]
    raise SystemExit("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workload", default="W1")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        torch.set_num_threads(options.threads)
    server, url = start_server(options.dtype)
    try:
        engine = Engine(EngineConfig(kv_cache_tokens=KV_TOKENS, dtype=options.dtype))
        target = Target(url, first_model(url, None))

        def over_http(workload: Workload) -> float:
            return float(asyncio.run(run(target, workload))["wall_s"])

        print(f"{'offline s':>10} {'HTTP s':>8} {'HTTP / offline':>15}")
        ratios = []
        for seed in range(1, options.repeat + 1):
            runs = [lambda w: offline(engine, w), over_http]
            order = (0, 1) if seed % 2 else (1, 0)
            seconds = [0.0, 0.0]
            for which in order:
                seconds[which] = runs[which](build(options.workload, seed))
            ratios.append(seconds[1] / seconds[0])
            print(f"{seconds[0]:>10.2f} {seconds[1]:>8.2f} {ratios[-1]:>15.2f}")
        print(f"median ratio {statistics.median(ratios):.2f}")
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
