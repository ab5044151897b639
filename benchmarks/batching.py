"""What each idea of the scheduler brings, on a real model in real time.

    python benchmarks/batching.py                 # batching modes, chunk sweep, long prompt among streams
    python benchmarks/batching.py --part modes    # one of: modes, chunks, stall

modes: the same arrivals served with static batching, continuous batching without chunks, with chunked prefill, and
with the prefix cache; the prompts share 600 tokens, what follows and the outputs have ShareGPT's lengths, halved and cut.
chunks: chunked prefill with `max_num_batched_tokens` from 64 to 8,192.
stall: eight streams decode while a prompt of 6,000 tokens arrives, with and without `target_itl_ms`; ITL is that of the
eight streams while the prompt is computed.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from trunkline import Engine, EngineConfig, SamplingParams
from trunkline.runtime.loading import LoadedModel, load_model
from trunkline.scheduler import SchedulerConfig

LENGTHS = Path(__file__).parent / "data" / "sharegpt_lengths_300.csv"
SHARED_TOKENS = 600


@dataclass
class Arrival:
    """One request: when it comes, what it brings, and when its tokens came, in seconds from the start."""

    at: float
    prompt: np.ndarray
    output_tokens: int
    token_times: list[float] = field(default_factory=list)


def arrivals(count: int, rate: float, vocab_size: int, seed: int) -> list[Arrival]:
    """Poisson arrivals; half of each prompt's ShareGPT length, at most 1,000, behind the shared examples."""
    random = np.random.default_rng(seed)
    with LENGTHS.open(encoding="utf-8") as file:
        lengths = [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]
    shared = random.integers(3, vocab_size, SHARED_TOKENS)
    times = np.cumsum(random.exponential(1 / rate, count))
    return [
        Arrival(
            float(at),
            np.concatenate([shared, random.integers(3, vocab_size, min(max(1, own // 2), 1000))]),
            min(max(4, out // 2), 96),
        )
        for at, (own, out) in zip(times, lengths, strict=False)
    ]


def serve(engine: Engine, load: Sequence[Arrival]) -> float:
    """Feeds the arrivals at their times and steps until all are answered; returns the seconds it took."""
    started = time.perf_counter()
    running: dict[str, Arrival] = {}
    pending = list(load)
    while pending or running:
        now = time.perf_counter() - started
        while pending and pending[0].at <= now:
            arrival = pending.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=arrival.output_tokens, ignore_eos=True)
            running[engine.add_request(arrival.prompt, params)] = arrival
        if not running:
            time.sleep(max(0.0, pending[0].at - now))
            continue
        for output in engine.step():
            running[output.id].token_times.append(time.perf_counter() - started)
            if output.last:
                del running[output.id]
    return time.perf_counter() - started


def milliseconds(values: Sequence[float]) -> list[str]:
    """Median, 99th percentile and largest."""
    points = np.percentile(values, [50, 99, 100]) * 1000 if len(values) else [0.0] * 3
    return [f"{point:.0f}" for point in points]


def row(name: str, load: Sequence[Arrival], wall: float, engine: Engine) -> list[str]:
    ttft = [arrival.token_times[0] - arrival.at for arrival in load]
    itl = [float(gap) for arrival in load for gap in np.diff(arrival.token_times)]
    tokens = sum(len(arrival.token_times) for arrival in load)
    stats = engine.scheduler.stats()
    cells = [name, f"{tokens / wall:.0f}", *milliseconds(ttft)[:2], *milliseconds(itl)]
    return [*cells, f"{stats.num_computed_tokens}", f"{stats.hit_rate:.0%}", f"{wall:.1f}"]


def start(loaded: LoadedModel, tokens: int, **scheduler: object) -> Engine:
    config = SchedulerConfig.from_mapping(scheduler)
    return Engine(EngineConfig(kv_cache_tokens=tokens, scheduler=config), loaded=loaded)


MODES: dict[str, dict[str, object]] = {
    "static": {"batching": "static", "enable_chunked_prefill": False, "enable_prefix_caching": False},
    "continuous": {"enable_chunked_prefill": False, "enable_prefix_caching": False},
    "+ chunked prefill": {"enable_prefix_caching": False, "max_num_batched_tokens": 256},
    "+ prefix cache": {"max_num_batched_tokens": 256},
}


def table_of(title: str) -> Table:
    table = Table(title=title)
    for head in (
        "",
        "out tok/s",
        "TTFT p50 ms",
        "p99",
        "ITL p50 ms",
        "p99",
        "max",
        "computed",
        "hits",
        "wall s",
    ):
        table.add_column(head, justify="right")
    return table


def compare_modes(loaded: LoadedModel, options: argparse.Namespace) -> Table:
    table = table_of(f"{options.requests} requests, {options.rate:g} a second, at most 16 running")
    for name, settings in MODES.items():
        load = arrivals(options.requests, options.rate, loaded.config.vocab_size, seed=0)
        engine = start(loaded, 65536, max_num_seqs=16, **settings)
        table.add_row(*row(name, load, serve(engine, load), engine))
    return table


def sweep_chunks(loaded: LoadedModel, options: argparse.Namespace) -> Table:
    table = table_of("chunked prefill by tokens a step, no prefix cache")
    for budget in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        load = arrivals(options.requests, options.rate, loaded.config.vocab_size, seed=0)
        engine = start(
            loaded, 65536, max_num_seqs=16, max_num_batched_tokens=budget, enable_prefix_caching=False
        )
        table.add_row(*row(f"{budget}", load, serve(engine, load), engine))
    return table


def stall(loaded: LoadedModel, options: argparse.Namespace) -> Table:
    table = Table(title="8 decoding streams, a prompt of 6,000 tokens arrives; ITL of the streams meanwhile")
    for head in ("target ms", "ITL p50 ms", "p99", "max", "p99 / target", "long TTFT s"):
        table.add_column(head, justify="right")
    random = np.random.default_rng(1)
    for target in (None, *options.targets):
        settings: dict[str, object] = {} if target is None else {"target_itl_ms": target}
        engine = start(loaded, 32768, **settings)
        gaps, ttft = watch_streams(engine, random)
        cells = milliseconds(gaps)
        ratio = "" if target is None else f"{np.percentile(gaps, 99) * 1000 / target:.2f}"
        table.add_row("none" if target is None else f"{target:g}", *cells, ratio, f"{ttft:.1f}")
    return table


def watch_streams(engine: Engine, random: np.random.Generator) -> tuple[list[float], float]:
    """Gaps between the streams' tokens while a long prompt is computed, and that prompt's TTFT, in seconds."""
    endless = SamplingParams(temperature=0.0, max_tokens=7000, ignore_eos=True)
    streams = [engine.add_request(random.integers(3, engine.vocab_size, 384), endless) for _ in range(8)]
    last: dict[str, float] = {}
    for _ in range(60):  # long enough for the cost model to have seen chunks and decodes
        for output in engine.step():
            last[output.id] = time.perf_counter()
    arrived = time.perf_counter()
    brief = SamplingParams(temperature=0.0, max_tokens=1)
    long = engine.add_request(random.integers(3, engine.vocab_size, 6000), brief)
    gaps: list[float] = []
    while True:
        for output in engine.step():
            now = time.perf_counter()
            if output.id == long:
                for stream in streams:
                    engine.abort(stream)
                return gaps, now - arrived
            gaps.append(now - last[output.id])
            last[output.id] = now


PARTS = {"modes": compare_modes, "chunks": sweep_chunks, "stall": stall}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, default=2.0, help="arrivals a second")
    parser.add_argument("--targets", type=float, nargs="*", default=[100.0, 200.0], help="target_itl_ms")
    options = parser.parse_args()
    loaded = load_model(options.model, dtype=options.dtype)
    console = Console(width=120)
    for name, part in PARTS.items():
        if options.part in (None, name):
            console.print(part(loaded, options))


if __name__ == "__main__":
    main()
