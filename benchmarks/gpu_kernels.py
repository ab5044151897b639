"""Paged attention on one device, next to what its memory and its matrix units allow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch

from trunkline.attention import AttentionConfig, AttentionMetadata, KVPool, make_backend
from trunkline.attention.base import AttentionBackend
from trunkline.attention.flashinfer import CascadeRule, FlashInferBackend

__all__ = ["Case", "Limits", "attention_seconds", "cascade_seconds", "compile_kernels", "limits", "seconds"]

DTYPE = torch.bfloat16
PAGE = 16


@dataclass(frozen=True)
class Limits:
    """What the same run measured: bytes a second read, FLOP a second of a large bf16 product."""

    bandwidth: float
    rate: float


@dataclass(frozen=True)
class Case:
    """Requests (tokens in the pool, new tokens), the first `shared` of which lie in the same pages."""

    name: str
    requests: tuple[tuple[int, int], ...]
    shared: int = 0

    def metadata(self) -> tuple[AttentionMetadata, int]:
        """Shuffled page tables, and how many pages they take."""
        counts = [-(-(start + length) // PAGE) - self.shared // PAGE for start, length in self.requests]
        num_pages = sum(counts) + self.shared // PAGE
        pages = np.random.default_rng(0).permutation(np.arange(1, num_pages + 1)).astype(np.int32)
        trunk, own = np.split(pages, [self.shared // PAGE])
        tables = [np.concatenate([trunk, part]) for part in np.split(own, np.cumsum(counts)[:-1])]
        starts, lengths = zip(*self.requests, strict=True)
        return AttentionMetadata.build(starts, lengths, tables, PAGE), num_pages

    def floor(self, config: AttentionConfig, limits: Limits) -> float:
        """Seconds a layer takes at best: keys and values read once (shared ones too), visible products computed."""
        keys = sum(start + length - self.shared for start, length in self.requests) + self.shared
        pairs = sum(length * start + length * (length + 1) / 2 for start, length in self.requests)
        size = keys * 2 * config.num_kv_heads * config.head_dim * DTYPE.itemsize
        flops = pairs * 4 * config.num_heads * config.head_dim
        return max(size / limits.bandwidth, flops / limits.rate)


def compile_kernels(head_dims: Sequence[int] = (64, 128)) -> int:
    """Compiles the FlashInfer modules that tests and benchmark use, side by side; returns how many.

    Left to themselves they compile one after the other as each is first used. Windows and soft caps, each of which is a
    module of its own, are left out.
    """
    core, jit = import_module("flashinfer.jit.core"), import_module("flashinfer.jit.attention.modules")
    specs = [
        getattr(import_module(f"flashinfer.jit.{name}"), f"gen_{name}_module")()
        for name in ("page", "norm", "rope", "cascade", "quantization")
    ]
    specs.append(import_module("flashinfer.jit.activation").gen_act_and_mul_module("silu"))
    for head_dim in head_dims:
        types = DTYPE, DTYPE, DTYPE, torch.int32, head_dim, head_dim, 0, False, False
        specs += [jit.gen_batch_decode_module(*types), jit.gen_batch_prefill_module("fa2", *types, False)]
    core.build_jit_specs(specs)
    return len(specs)


def seconds(device: torch.device, work: Callable[[], object], rounds: int = 5, calls: int = 1) -> float:
    """Median seconds of one call, by events on a GPU; the first round warms up."""
    times = []
    for _ in range(rounds + 1):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(calls):
                work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / calls)
        else:
            started = time.perf_counter()
            for _ in range(calls):
                work()
            times.append((time.perf_counter() - started) / calls)
    return statistics.median(times[1:])


def limits(device: torch.device, quick: bool) -> Limits:
    """The device's own, by a sum over a tensor that no cache holds and by a square product."""
    data = torch.ones((16 << 20) if quick else (1 << 30), dtype=torch.float32, device=device)
    size = 512 if quick else 8192
    a, b = torch.randn(2, size, size, device=device).to(DTYPE)
    read = seconds(device, data.sum)
    product = seconds(device, lambda: a @ b)
    return Limits(data.nbytes / read, 2 * size**3 / product)


def attention_seconds(name: str, config: AttentionConfig, device: torch.device, case: Case) -> float:
    """Seconds a layer; layers take turns, so that keys come from memory as in a real step."""
    backend, q, k, v = _prepared(case, config, device, lambda pool: make_backend(name, config, pool))
    return _layer_seconds(backend, config, device, q, k, v)


def cascade_seconds(config: AttentionConfig, device: torch.device, case: Case) -> dict[str, float]:
    """Seconds a layer with the shared prefix read once, and with each request reading it for itself."""
    rules = {"on": CascadeRule(launch_bytes=-(1 << 60)), "off": CascadeRule(launch_bytes=1 << 60)}
    times = {}
    for what, rule in rules.items():
        prepared = _prepared(
            case, config, device, lambda pool, rule=rule: FlashInferBackend(config, pool, cascade=rule)
        )
        times[what] = _layer_seconds(prepared[0], config, device, *prepared[1:])
    return times


def _prepared(
    case: Case, config: AttentionConfig, device: torch.device, make: Callable[[KVPool], AttentionBackend]
) -> tuple[AttentionBackend, torch.Tensor, torch.Tensor, torch.Tensor]:
    metadata, num_pages = case.metadata()
    pool = KVPool(config, num_pages, DTYPE, device)
    pool.data.normal_()
    backend = make(pool)
    backend.plan(metadata)
    q = torch.randn(metadata.num_tokens, config.num_heads, config.head_dim, device=device).to(DTYPE)
    k, v = torch.randn(2, metadata.num_tokens, config.num_kv_heads, config.head_dim, device=device).to(DTYPE)
    return backend, q, k, v


def _layer_seconds(
    backend: AttentionBackend,
    config: AttentionConfig,
    device: torch.device,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> float:
    def step() -> None:
        for layer in range(config.num_layers):
            backend.forward(layer, q, k, v)

    return seconds(device, step) / config.num_layers
