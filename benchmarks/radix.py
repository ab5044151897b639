"""The prefix cache by itself: match, commit and evict in microseconds, and hits on two real traces.

    python benchmarks/radix.py                    # all but SGLang's side, under a minute on a quiet machine
    python benchmarks/radix.py --sizes 1000,5000,10000,30000,50000 --policies lru,slru,gdsf
    python benchmarks/radix.py --only micro,sglang

Times are medians. What the replays count is told in `replay`. `--only sglang` compares with SGLang's own RadixCache
where the `sglang` package can be imported; how to get it is told in `radix_sglang.py`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trunkline.radix import PagePool, PrefixCache, RadixConfig

DATA = Path(__file__).parent / "data"
PROMPT = 32_768
PAGE = 16


@dataclass(frozen=True)
class TraceRequest:
    """A prompt as a trace tells it: ids of blocks, equal ids are equal tokens behind an equal prefix."""

    num_tokens: int
    blocks: np.ndarray


@dataclass(frozen=True)
class Trace:
    name: str
    block_size: int
    requests: list[TraceRequest]


def conversation_trace() -> Trace:
    """One hour of production chat (Mooncake, FAST'25): 12,031 requests, blocks of 512 tokens."""
    with gzip.open(DATA / "mooncake_conversation.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    requests = [TraceRequest(row["input_length"], np.array(row["hash_ids"])) for row in rows]
    return Trace("conversation", 512, requests)


def agents_trace() -> Trace:
    """103 coding-agent sessions, blocks of 64 tokens; ids mean something inside their session only."""
    requests: list[TraceRequest] = []
    first = 0
    with gzip.open(DATA / "claude_code_sessions_103.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            session = list(_flat(json.loads(line)["requests"]))
            requests += [TraceRequest(row["in"], np.array(row["hash_ids"]) + first) for row in session]
            first = max(int(request.blocks.max(initial=first)) for request in requests) + 1
    return Trace("agents", 64, requests)


def _flat(rows: list[dict]) -> Iterator[dict]:
    for row in rows:
        if row["type"] == "subagent":
            yield from _flat(row["requests"])
        else:
            yield row


def tokens_of(request: TraceRequest, block_size: int, unknown: int) -> np.ndarray:
    """Tokens that agree where the ids do: each block is its id, over and over; behind the blocks `unknown`.

    One more token follows, the one that the request would sample: a prompt that is cached as a whole then counts
    as a whole, as it does where blocks are counted (a cache always leaves the last token of a prompt to compute).
    """
    tokens = np.full(request.num_tokens + 1, unknown, dtype=np.int32)
    known = np.repeat(request.blocks, block_size)[: request.num_tokens]
    tokens[: len(known)] = known
    tokens[-1] = unknown + 1
    return tokens


@dataclass(frozen=True)
class Replay:
    """Hits of a whole trace."""

    num_tokens: int
    hit_tokens: int
    num_blocks: int
    hit_blocks: int
    seconds: float


def replay(trace: Trace, num_pages: int, policy: str) -> Replay:
    """Every request's whole life in the real cache, in file order, one after the other; outputs are not cached.

    A page is a block. With room for all, hits are what any cache can reach. With less room the figures of a
    plain LRU of blocks differ a little, since here a request's own prefix cannot be evicted while it runs, and
    a last block that is not full is found to the token. `seconds` is without the making of the tokens.
    """
    size = trace.block_size
    cache = PrefixCache(PagePool(num_pages, size), RadixConfig(page_size=size, eviction_policy=policy))
    unknown = max(int(request.blocks.max(initial=0)) for request in trace.requests) + 1
    hit_tokens = hit_blocks = num_tokens = 0
    seconds = 0.0
    for number, request in enumerate(trace.requests):
        tokens = tokens_of(request, size, unknown + 2 * number)
        begun = time.perf_counter()
        match = cache.match(tokens)
        lease = cache.acquire(match)
        if not cache.reserve(lease, request.num_tokens):
            raise SystemExit(
                f"request {number} of {request.num_tokens} tokens does not fit in {num_pages} pages"
            )
        cache.copied(lease)
        cache.commit(lease, tokens[:-1])
        cache.release(lease)
        seconds += time.perf_counter() - begun
        num_tokens += request.num_tokens
        hit_tokens += match.num_tokens
        hit_blocks += -(-match.num_tokens // size)
    num_blocks = sum(len(request.blocks) for request in trace.requests)
    return Replay(num_tokens, hit_tokens, num_blocks, hit_blocks, seconds)


def print_replays(sizes: list[int], policies: list[str]) -> None:
    print(
        f"{'trace':13} {'policy':9} {'pages':>8} {'hit tokens':>12} {'share':>7} {'blocks':>9} {'share':>7} {'s':>6}"
    )
    conversation, agents = conversation_trace(), agents_trace()
    runs = [(conversation, "lru", 200_000)]
    runs += [(conversation, policy, size) for policy in policies for size in sizes]
    runs += [(agents, "lru", 400_000)]
    for trace, policy, num_pages in runs:
        got = replay(trace, num_pages, policy)
        print(
            f"{trace.name:13} {policy:9} {num_pages:8,} {got.hit_tokens:12,} {got.hit_tokens / got.num_tokens:7.4f}"
            f" {got.hit_blocks:9,} {got.hit_blocks / got.num_blocks:7.4f} {got.seconds:6.2f}",
            flush=True,
        )


def median_us(work: Callable[[], object], repetitions: int = 200) -> float:
    times = []
    for _ in range(repetitions):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def serve(cache: PrefixCache, tokens: np.ndarray) -> None:
    lease = cache.acquire(cache.match(tokens))
    cache.reserve(lease, len(tokens))
    cache.copied(lease)
    cache.commit(lease, tokens)
    cache.release(lease)


def make_cache(num_pages: int, explain: bool = False) -> PrefixCache:
    return PrefixCache(PagePool(num_pages, PAGE), RadixConfig(page_size=PAGE, explain=explain))


def cached_in_nodes(tokens: np.ndarray, num_nodes: int) -> PrefixCache:
    """A cache that has `tokens` in `num_nodes` nodes, each with a branch at its end."""
    cache = make_cache(2 * len(tokens) // PAGE + num_nodes)
    serve(cache, tokens)
    for number in range(1, num_nodes):
        cut = number * len(tokens) // num_nodes // PAGE * PAGE
        serve(cache, np.append(tokens[:cut], tokens[cut : cut + PAGE] + 1).astype(np.int32))
    return cache


def wide_cache(num_leaves: int, explain: bool = False) -> PrefixCache:
    """A full pool: leaves of one page, 1,000 of them behind each of some shared pages."""
    cache = make_cache(num_leaves + num_leaves // 1000, explain)
    for number in range(num_leaves):
        tokens = np.full(2 * PAGE, number // 1000, dtype=np.int32)
        tokens[PAGE:] = number
        serve(cache, tokens)
    return cache


def evict_us(num_leaves: int, explain: bool = False, repetitions: int = 800) -> float:
    """One page out of a full pool, without the allocation that follows."""
    cache = wide_cache(num_leaves, explain)
    times = []
    for _ in range(repetitions):
        begun = time.perf_counter()
        cache.tree.evict_first(1)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def commit_us(tokens: np.ndarray, explain: bool = False) -> float:
    """All tokens at once into an empty cache."""
    times = []
    for _ in range(20):
        cache = make_cache(len(tokens) // PAGE + 1, explain)
        lease = cache.lease()
        cache.reserve(lease, len(tokens))
        begun = time.perf_counter()
        cache.commit(lease, tokens)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def commit_one_us(tokens: np.ndarray) -> float:
    """One more token of a running request behind 16,000 that are in the tree."""
    cache = make_cache(len(tokens) // PAGE + 1)
    lease = cache.lease()
    cache.reserve(lease, len(tokens))
    ends = iter(range(16_000, len(tokens)))
    return median_us(lambda: cache.commit(lease, tokens[: next(ends)]), 2000)


def print_micro() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 128_000, PROMPT + 1, dtype=np.int32)
    whole = cached_in_nodes(tokens, 1)
    parts = cached_in_nodes(tokens, 100)
    print(f"page size {PAGE}, prompt of {PROMPT:,} tokens; microseconds")
    print(f"match, cached in one run of pages      {median_us(lambda: whole.match(tokens)):9.1f}")
    print(f"match, cached in 100 nodes             {median_us(lambda: parts.match(tokens)):9.1f}")
    reuse = median_us(lambda: whole.release(whole.acquire(whole.match(tokens))))
    print(f"match, acquire and release             {reuse:9.1f}")
    print(f"commit, all of it new                  {commit_us(tokens[:-1]):9.1f}")
    print(f"commit, one more token of it           {commit_one_us(tokens):9.1f}")
    small, large = evict_us(1_000), evict_us(100_000)
    print(f"evict one page,   1,000 leaves         {small:9.1f}")
    print(f"evict one page, 100,000 leaves         {large:9.1f}  ({large / small:.2f} times)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only", default="micro,replay", help="of micro, replay, sglang, separated by commas"
    )
    parser.add_argument("--sizes", default="10000", help="pages of the bounded conversation replays")
    parser.add_argument("--policies", default="lru", help="their eviction policies")
    options = parser.parse_args()
    parts = options.only.split(",")
    if "micro" in parts:
        print_micro()
    if "replay" in parts:
        print_replays([int(size) for size in options.sizes.split(",")], options.policies.split(","))
    if "sglang" in parts:
        from radix_sglang import print_comparison

        print_comparison()


if __name__ == "__main__":
    main()
