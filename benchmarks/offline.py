"""Offline throughput: concurrent requests with long prompts, through `Engine.step`, on any model.

    python benchmarks/offline.py                      # 16 requests x 1,000 tokens in, 64 out, the embedded model
    python benchmarks/offline.py --shared 900         # the first 900 tokens of each prompt are the same

Prints, per repetition and as the median, the prompt tokens computed per second until the last first token, the output
tokens per second after it, and the wall time. Repetitions use other tokens, so none begins with a warm cache.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from trunkline import Engine, EngineConfig, SamplingParams


@dataclass
class Run:
    """One repetition: seconds and tokens before and after the last request's first token."""

    prefill_seconds: float
    decode_seconds: float
    computed: int
    cached: int
    decoded: int
    steps: int

    @property
    def wall(self) -> float:
        return self.prefill_seconds + self.decode_seconds


def measure(engine: Engine, options: argparse.Namespace, seed: int) -> Run:
    """Queues all requests at once and steps until they are done."""
    random = np.random.default_rng(seed)
    shared = random.integers(3, engine.vocab_size, options.shared)
    params = SamplingParams(max_tokens=options.output, temperature=0.0, ignore_eos=True)
    started = time.perf_counter()
    waiting = set()
    for _ in range(options.requests):
        own = random.integers(3, engine.vocab_size, options.prompt - options.shared)
        waiting.add(engine.add_request(np.concatenate([shared, own]), params))
    first_tokens_at = started
    cached = decoded = steps = 0
    while engine.has_work:
        outputs = engine.step()
        steps += 1
        now = time.perf_counter()
        for output in outputs:
            if output.id in waiting:
                waiting.discard(output.id)
                cached += output.num_cached_tokens
                first_tokens_at = now
            else:
                decoded += len(output.token_ids) if not waiting else 0
    ended = time.perf_counter()
    computed = options.requests * options.prompt - cached
    return Run(first_tokens_at - started, ended - first_tokens_at, computed, cached, decoded, steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="directory, .gguf file or hub id; the embedded model if absent")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--backend", default="auto", help="attention backend")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--shared", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument("--output", type=int, default=64, help="tokens each request generates")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()

    tokens = 2 * options.requests * (options.prompt + options.output)
    engine = Engine(
        EngineConfig(
            model=options.model,
            dtype=options.dtype,
            attention_backend=options.backend,
            kv_cache_tokens=tokens,
        )
    )
    print(
        f"{engine.model_name}, {options.requests} requests x {options.prompt} tokens "
        f"({options.shared} shared), {options.output} out, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(
        f"{'run':>6} {'prefill tok/s':>14} {'decode tok/s':>13} {'wall s':>8} {'computed':>9} {'cached':>8} {'steps':>6}"
    )
    runs = []
    for number in range(options.repeat):
        run = measure(engine, options, seed=number)
        runs.append(run)
        print(
            f"{number + 1:>6} {run.computed / run.prefill_seconds:>14.0f} {run.decoded / run.decode_seconds:>13.0f} "
            f"{run.wall:>8.2f} {run.computed:>9} {run.cached:>8} {run.steps:>6}"
        )
    print(
        f"{'median':>6} {statistics.median(run.computed / run.prefill_seconds for run in runs):>14.0f} "
        f"{statistics.median(run.decoded / run.decode_seconds for run in runs):>13.0f} "
        f"{statistics.median(run.wall for run in runs):>8.2f}"
    )


if __name__ == "__main__":
    main()
