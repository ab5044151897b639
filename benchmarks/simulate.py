"""How long it takes to simulate an hour of production chat (12,031 requests), and whether its hits are the trace's.

    python benchmarks/simulate.py                # under two minutes on a quiet machine
    python benchmarks/simulate.py --limit 1000

The first figures are the cost of `trunkline simulate mooncake_conversation.jsonl.gz --device 4xH100
--max-num-batched-tokens 8192`; the others are the hit rates of caches of several sizes, without generation, beside
those of a plain LRU over the trace's 512-token blocks.
"""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from trunkline.frontend.simulate.setup import Setup, default_page_size
from trunkline.frontend.simulate.traces import MOONCAKE_BLOCK_SIZE, read_trace
from trunkline.scheduler import SchedulerConfig
from trunkline.scheduler.hardware import find_device, find_model
from trunkline.scheduler.roofline import Roofline
from trunkline.scheduler.workload import Workload

TRACE = Path(__file__).parent / "data" / "mooncake_conversation.jsonl.gz"


def block_lru_hits(workload: Workload, num_blocks: int) -> float:
    """Share of prompt tokens that a block LRU of so many blocks finds; a request touches its deepest block first."""
    cached: OrderedDict[int, None] = OrderedDict()
    hit_tokens = tokens = 0
    for request in workload.requests:
        blocks = request.prompt()[::MOONCAKE_BLOCK_SIZE].tolist()
        hits = next((index for index, block in enumerate(blocks) if block not in cached), len(blocks))
        hit_tokens += min(hits * MOONCAKE_BLOCK_SIZE, request.num_prompt_tokens - 1)
        tokens += request.num_prompt_tokens
        for block in reversed(blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > num_blocks:
            cached.popitem(last=False)
    return hit_tokens / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=None, help="only the first so many requests")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000, 10_000, 300_000])
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=8192, help="more steps, more time with fewer"
    )
    arguments = parser.parse_args()

    wall, cpu = time.perf_counter(), time.process_time()
    workload = read_trace(TRACE)
    if arguments.limit is not None:
        workload = workload.head(arguments.limit)
    page_size = default_page_size(workload)
    read = time.perf_counter() - wall
    scheduler = SchedulerConfig(max_num_batched_tokens=arguments.max_num_batched_tokens)
    roofline = Roofline(find_model("Llama-3.1-8B"), find_device("4xH100"), page_size)
    report = Setup(roofline, scheduler).simulate(workload)
    print(f"{len(workload):,} requests, {report.num_steps:,} steps, {report.seconds:,.0f} virtual seconds")
    print(
        f"{time.perf_counter() - wall:.1f} s, of them {read:.1f} s reading; {time.process_time() - cpu:.1f} s of CPU"
    )

    print(f"\n{'blocks':>9}{'simulated':>12}{'block LRU':>12}   (share of prompt tokens found in the cache)")
    prompts = replace(workload, requests=tuple(replace(r, max_new_tokens=1) for r in workload.requests))
    scheduler = SchedulerConfig(max_num_batched_tokens=2**20, scheduling_policy="fcfs")
    roofline = Roofline(find_model("SmolLM2-135M"), find_device("8xH200"), page_size)
    for blocks in arguments.blocks:
        found = Setup(roofline, scheduler, kv_tokens=blocks * MOONCAKE_BLOCK_SIZE).simulate(prompts)
        print(f"{blocks:>9,}{found.hit_rate:>12.4f}{block_lru_hits(workload, blocks):>12.4f}")


if __name__ == "__main__":
    main()
