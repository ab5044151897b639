"""What this machine can do at most, and from it the least time of each workload of the benchmark client.

    python benchmarks/limits.py [--threads N] [--json]

Measures how fast memory is read, and matrix products of the shapes of SmolLM2-135M's layers. The floor of a workload
counts the fewest operations and bytes, at the best rates measured, and nothing else:

    floor = F(prompt tokens that no earlier request has brought) / rate
          + sum over decode steps of max(F(step) / rate, bytes(step) / bandwidth)

F is 2 per weight of the layers and token, 2 per weight of the output projection and sampled token, and 4 · heads ·
head_dim · layers per pair of a query and a key it sees. A decode step reads every weight once (bfloat16) and, for each
of its streams, that stream's keys and values, but never more than the cache holds. Every request but the first has
`output - 1` decode steps, as many streams at a time as there are clients at a time (16 for W4, the peers' limit). A
kernel that reads a shared prefix once for all its streams can go below these bytes, and steps that mix prefill and
decode can hide some of them: it is a floor for the usual way to compute.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.workloads import WORKLOADS, Workload, build, words
from trunkline.attention.memory import advise_huge_pages
from trunkline.radix.tokens import Int32Array
from trunkline.runtime.loading import Tokenizer, load_tokenizer

MAX_STREAMS = 16
CACHES = {"W4": 4096}
PRODUCTS = ((2048, 576, 1536), (512, 576, 3072), (512, 1536, 576), (16, 576, 3072), (4096, 4096, 4096))


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as far as its cost goes; the defaults are SmolLM2-135M's."""

    layers: int = 30
    hidden: int = 576
    intermediate: int = 1536
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    vocab: int = 49152
    bytes_each: int = 2

    @property
    def layer_weights(self) -> int:
        """Of the matrices in all layers."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocab

    @property
    def kv_bytes(self) -> int:
        """Of one token in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_each

    @property
    def pair_flops(self) -> int:
        return 4 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP and bytes a second."""

    flops: float
    read: float


SMOLLM2 = Shape()


@dataclass(frozen=True, slots=True)
class Work:
    """What a workload has to compute: prompt tokens, their (query, key) pairs, and decode steps of so many streams.

    `context` is the mean number of tokens that a stream sees, `cache` the tokens that the KV cache holds.
    """

    requests: int
    computed: int
    pairs: int
    steps: float
    streams: float
    context: float
    cache: float = math.inf


def floor(work: Work, rates: Rates, shape: Shape = SMOLLM2) -> float:
    """Seconds; see the top of this file."""
    weights = shape.layer_weights + shape.head_weights
    prefill = 2 * shape.layer_weights * work.computed + shape.pair_flops * work.pairs
    prefill += 2 * shape.head_weights * work.requests
    step = work.streams * (2 * weights + shape.pair_flops * work.context)
    kept = min(work.streams * work.context, work.cache)
    moved = shape.bytes_each * weights + shape.kv_bytes * kept
    return prefill / rates.flops + work.steps * max(step / rates.flops, moved / rates.read)


def work_of(name: str, tokenizer: Tokenizer) -> Work:
    """Counts a workload's work, with the words of seed 1."""
    workload = build(name, 1)
    earlier: list[Int32Array] = []
    computed = pairs = decoded = seen = 0
    for prompt, whole, num_output in _requests(workload, tokenizer):
        known = min(max((_num_common(prompt, old) for old in earlier), default=0), len(prompt) - 1)
        computed += len(prompt) - known
        pairs += sum(range(known + 1, len(prompt) + 1))
        decoded += num_output - 1
        seen += sum(range(len(prompt) + 1, len(prompt) + num_output))
        earlier.append(whole)
    longest = max(sum(turn.num_output - 1 for turn in client) for client in workload.clients)
    steps = max(longest, decoded / min(workload.concurrency, MAX_STREAMS))
    cache = CACHES.get(name, math.inf)
    return Work(len(earlier), computed, pairs, steps, decoded / steps, seen / decoded, cache)


def _requests(workload: Workload, tokenizer: Tokenizer) -> Iterator[tuple[Int32Array, Int32Array, int]]:
    """Each request's prompt, the same with its answer in a chat (a word for each token), and the tokens asked for."""
    for client in workload.clients:
        messages = [{"role": "system", "content": workload.system or ""}]
        for turn in client:
            if workload.system is None:
                prompt = whole = tokenizer.encode(turn.text)
            else:
                messages.append({"role": "user", "content": turn.text})
                prompt = tokenizer.render_chat(messages).ids
                answer = words(random.Random(turn.text), turn.num_output)
                messages.append({"role": "assistant", "content": answer})
                whole = np.concatenate([prompt, tokenizer.encode(answer)])
            yield prompt, whole, turn.num_output


def _num_common(one: Int32Array, other: Int32Array) -> int:
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def best(call: Callable[[], object], seconds: float = 0.5) -> float:
    """The shortest time of a call, over so many seconds of calls after one to warm up."""
    call()
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < ends:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def read_bandwidth() -> float:
    """Bytes a second of a sum over 256 MiB in large pages."""
    data = torch.empty(64 << 20)
    advise_huge_pages(data)
    data.fill_(1.0)
    return data.nbytes / best(data.sum)


def product_rates(rows: int, inner: int, columns: int) -> dict[str, float]:
    """FLOP a second of x [rows, inner] times a weight [columns, inner], by dtype."""
    flops = 2.0 * rows * inner * columns
    x, weight = torch.randn(rows, inner), torch.randn(columns, inner)
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        typed_x, typed_weight = x.to(dtype), weight.to(dtype)
        found[str(dtype).removeprefix("torch.")] = flops / best(
            lambda a=typed_x, b=typed_weight: F.linear(a, b)
        )
    small, small_weight = x.clamp(-1, 1).to(torch.int8), weight.t().clamp(-1, 1).to(torch.int8)
    found["int8"] = flops / best(lambda: torch._int_mm(small, small_weight))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--json", action="store_true", help="print the floors by workload as JSON, nothing else"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    read = read_bandwidth()
    with torch.inference_mode():
        products = {shape: product_rates(*shape) for shape in PRODUCTS}
    # A CPU without bf16 instructions may multiply bf16 weights fastest as float32.
    flops = max(rate for rates in products.values() for dtype, rate in rates.items() if dtype != "int8")
    tokenizer = load_tokenizer()
    works = {name: work_of(name, tokenizer) for name in WORKLOADS}
    floors = {name: floor(work, Rates(flops, read)) for name, work in works.items()}
    if options.json:
        print(json.dumps(floors))
        return
    print(f"torch {torch.__version__}, {options.threads} threads: memory is read at {read / 1e9:.1f} GB/s")
    print("\n| product | bf16 GFLOP/s | fp32 | int8 |\n| --- | --- | --- | --- |")
    for shape, rates in products.items():
        print(f"| {' x '.join(map(str, shape))} | {' | '.join(f'{r / 1e9:.0f}' for r in rates.values())} |")
    print(
        "\n| workload | prompt tokens computed | decode steps | streams | floor s |\n| --- | --- | --- | --- | --- |"
    )
    for name, work in works.items():
        print(f"| {name} | {work.computed:,} | {work.steps:.0f} | {work.streams:.1f} | {floors[name]:.2f} |")


if __name__ == "__main__":
    main()
