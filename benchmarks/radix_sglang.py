"""The same operations on SGLang's RadixCache, where the `sglang` package can be imported.

SGLang's own requirements are CUDA packages, none of which its radix tree needs; on a machine without a GPU, into
an environment that has Trunkline:

    pip install torch transformers triton numpy scipy IPython openai dill jsonschema soundfile msgspec pyzmq orjson \
        psutil requests aiohttp fastapi uvicorn uvloop pydantic packaging pillow tqdm xxhash zstandard pybase64 \
        prometheus-client setproctitle compressed-tensors gguf einops llguidance xgrammar partial_json_parser \
        interegular sentencepiece regex python-multipart ninja
    pip install --no-deps sglang==0.5.23
    python benchmarks/radix.py --only sglang
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time
import warnings
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from trunkline.radix import PagePool, PrefixCache, RadixConfig

# Imported by SGLang on the way to its radix tree, used only for images and for CUDA kernels.
NOT_NEEDED = ("torchvision", "vllm")
PROMPT = 32_768
LEAVES = 41_000


def import_sglang() -> ModuleType | None:
    """SGLang's radix_cache module; None where the package is not installed."""
    if importlib.util.find_spec("sglang") is None:
        return None
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # Transformers remembers the true answer, before the stand-ins below
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            try:
                return importlib.import_module("sglang.srt.mem_cache.radix_cache")
            except ModuleNotFoundError as missing:
                if missing.name is None or missing.name.split(".")[0] not in NOT_NEEDED:
                    raise
                stand_in = MagicMock()
                stand_in.__path__ = []
                stand_in.__spec__ = None
                sys.modules[missing.name] = stand_in


class Ours:
    """Trunkline's cache behind the three operations that are compared."""

    def __init__(self, page_size: int, num_pages: int) -> None:
        self.cache = PrefixCache(PagePool(num_pages, page_size), RadixConfig(page_size=page_size))

    def prepare(self, tokens: np.ndarray) -> Any:
        """All that is not the lookup itself: the cache takes int32 arrays."""
        return np.append(tokens, np.int32(0))

    def match(self, prepared: Any) -> int:
        return self.cache.match(prepared).num_tokens

    def prepare_commit(self, tokens: np.ndarray) -> Any:
        lease = self.cache.acquire(self.cache.match(np.append(tokens, np.int32(0))))
        self.cache.reserve(lease, len(tokens))
        self.cache.copied(lease)
        return lease, tokens

    def commit(self, prepared: Any) -> None:
        self.cache.commit(*prepared)

    def done(self, prepared: Any) -> None:
        self.cache.release(prepared[0])

    def clear(self) -> None:
        self.cache.flush()

    def evict(self, num_tokens: int) -> None:
        self.cache.tree.evict_first(-(-num_tokens // self.cache.page_size))


class Theirs:
    """SGLang's cache behind the same; its token slots are the positions themselves."""

    def __init__(self, module: ModuleType, page_size: int) -> None:
        import torch

        self.module, self.torch = module, torch
        allocator = MagicMock()
        allocator.device = torch.device("cpu")
        allocator.free_segment = lambda *_, **__: None
        self.cache = module.RadixCache.create_simulated(page_size=page_size, mock_allocator=allocator)

    def prepare(self, tokens: np.ndarray) -> Any:
        key = self.module.RadixKey(token_ids=array("q", tokens.tolist()))
        return self.module.MatchPrefixParams(key=key)

    def match(self, prepared: Any) -> int:
        """Without the slots of the matched tokens, which newer versions gather in a further call."""
        found = self.cache.match_prefix(prepared)
        if hasattr(found, "device_prefix_len"):
            return int(found.device_prefix_len)
        return len(found.device_indices)

    def prepare_commit(self, tokens: np.ndarray) -> Any:
        key = self.module.RadixKey(token_ids=array("q", tokens.tolist()))
        return self.module.InsertParams(key=key, value=self.torch.arange(len(tokens)))

    def commit(self, prepared: Any) -> None:
        self.cache.insert(prepared)

    def done(self, prepared: Any) -> None:
        """A simulated cache holds no request's pages."""

    def clear(self) -> None:
        self.cache.reset()

    def evict(self, num_tokens: int) -> None:
        self.cache.evict(self.module.EvictParams(num_tokens=num_tokens))


def serve(side: Ours | Theirs, tokens: np.ndarray) -> int:
    """Hits of one request, which is then cached as a whole."""
    hits = side.match(side.prepare(tokens[:-1]))
    prepared = side.prepare_commit(tokens)
    side.commit(prepared)
    side.done(prepared)
    return hits


def chats() -> list[np.ndarray]:
    """64 conversations of six turns behind four system prompts, of lengths that no page size divides."""
    rng = np.random.default_rng(7)
    systems = [rng.integers(0, 32_000, rng.integers(150, 400), dtype=np.int32) for _ in range(4)]
    prompts: list[tuple[int, int, np.ndarray]] = []
    for chat in range(64):
        history = systems[chat % 4]
        for turn in range(6):
            history = np.append(history, rng.integers(0, 32_000, rng.integers(10, 200), dtype=np.int32))
            prompts.append((turn, chat, history))
    return [prompt for _, _, prompt in sorted(prompts, key=lambda item: item[:2])]


def median_us(work: Callable[[], object], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def commit_us(make: Callable[[], Ours | Theirs], tokens: np.ndarray) -> float:
    """Into a cache that was full before and is empty now, as a server's is after its first minutes."""
    times = []
    side = make()
    for _ in range(21):
        prepared = side.prepare_commit(tokens)
        begun = time.perf_counter()
        side.commit(prepared)
        times.append(time.perf_counter() - begun)
        side.done(prepared)
        side.clear()
    return statistics.median(times[1:]) * 1e6


def measure(make: Callable[[int], Ours | Theirs], page_size: int) -> tuple[float, float, float, int]:
    """Microseconds of match, commit and evict, and hit tokens of the chats."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 128_000, PROMPT, dtype=np.int32)
    side = make(page_size)
    serve(side, tokens)
    lookup = side.prepare(tokens)
    match = median_us(lambda: side.match(lookup), 50)
    commit = commit_us(lambda: make(page_size), tokens)
    wide = make(page_size)
    for number in range(LEAVES):
        leaf = np.full(2 * page_size, number // 1000, dtype=np.int32)
        leaf[page_size:] = number
        serve(wide, leaf)
    evict = median_us(lambda: wide.evict(page_size), 30)
    talking = make(page_size)
    return match, commit, evict, sum(serve(talking, prompt) for prompt in chats())


def print_comparison() -> None:
    """A table of both sides at page sizes 1 and 16; one line when SGLang is not there."""
    module = import_sglang()
    if module is None:
        print("sglang is not installed: see benchmarks/radix_sglang.py for how to get it")
        return
    print(f"match and commit of {PROMPT:,} tokens, evict of a page at {LEAVES:,} leaves; microseconds")
    print(f"{'':10} {'page':>4} {'match':>10} {'commit':>10} {'evict':>10} {'hit tokens of chats':>20}")
    makers: dict[str, Callable[[int], Ours | Theirs]] = {
        "trunkline": lambda page_size: Ours(page_size, 200_000),
        "sglang": lambda page_size: Theirs(module, page_size),
    }
    for page_size in (1, 16):
        for name, make in makers.items():
            match, commit, evict, hits = measure(make, page_size)
            print(
                f"{name:10} {page_size:4} {match:10.1f} {commit:10.1f} {evict:10.1f} {hits:20,}", flush=True
            )
