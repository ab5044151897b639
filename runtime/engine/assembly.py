"""Puts the rooms together: pool, tree, scheduler, page tensors, backend and runner for one model."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from trunkline.attention import AttentionConfig, HostPool, KVPool, flashinfer, make_backend, native
from trunkline.attention.base import CapturableBackend
from trunkline.errors import ConfigError
from trunkline.radix import PagePool, PrefixCache
from trunkline.runtime.loading import LoadedModel
from trunkline.runtime.sampling import Grammars, Sampler
from trunkline.scheduler import Scheduler

from .background import BackgroundRunner
from .backing import Backing
from .config import EngineConfig
from .decode_graphs import CudaRecorder, DecodeGraphs
from .runner import ModelRunner

__all__ = ["Assembly", "assemble"]

# Above this many rows a step's kernels take longer than their launches.
_MAX_GRAPH_ROWS = 256


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of an engine; `launcher` is what plans are given to: `runner`, or somebody who passes them on."""

    cache: PrefixCache
    scheduler: Scheduler
    runner: ModelRunner
    launcher: ModelRunner | BackgroundRunner
    backing: Backing
    overlap: bool
    max_model_len: int
    backend_name: str


def assemble(config: EngineConfig, loaded: LoadedModel) -> Assembly:
    """Builds the parts; raises ConfigError where the settings don't fit the model or the memory."""
    dtype, device = loaded.model.dtype, loaded.model.device
    page_size = config.radix.page_size
    attention = loaded.config.attention_config(page_size)
    backend_name = _backend_name(config, attention, dtype, device)
    kv_dtype = _kv_dtype(config, dtype, backend_name)
    num_pages = _num_pages(config, KVPool.page_bytes(attention, kv_dtype), device)
    max_model_len = _max_model_len(config, loaded, num_pages * page_size)
    cache = PrefixCache(PagePool(num_pages, page_size), config.radix)
    scheduler = Scheduler(cache, config.scheduler)
    kv_pool = KVPool(attention, num_pages, kv_dtype, device)
    num_host_pages = config.scheduler.num_host_pages
    host_pool = HostPool(kv_pool, num_host_pages) if num_host_pages else None
    backend = make_backend(backend_name, attention, kv_pool)
    sampler = Sampler(loaded.config.vocab_size, device)
    grammars = Grammars(loaded.tokenizer, loaded.config.vocab_size, loaded.eos_token_ids)
    graphs = None
    if device.type == "cuda" and isinstance(backend, CapturableBackend):
        max_rows = min(config.scheduler.max_running, _MAX_GRAPH_ROWS)
        graphs = DecodeGraphs(loaded.model, backend, kv_pool, max_rows, CudaRecorder(device))
        graphs.warm_up()
    runner = ModelRunner(loaded.model, backend, kv_pool, sampler, device, grammars, host_pool, graphs)
    overlap = config.overlap if config.overlap is not None else device.type == "cuda"
    launcher = BackgroundRunner(runner) if overlap and device.type == "cpu" else runner
    backing = Backing(kv_pool, cache.pool)
    return Assembly(cache, scheduler, runner, launcher, backing, overlap, max_model_len, backend_name)


def _num_pages(config: EngineConfig, page_bytes: int, device: torch.device) -> int:
    if config.kv_cache_tokens is not None:
        return config.kv_cache_tokens // config.radix.page_size
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = psutil.virtual_memory().available
    num_pages = int(free * config.kv_cache_fraction) // page_bytes
    if num_pages < 1:
        raise ConfigError(
            f"kv_cache_fraction {config.kv_cache_fraction} of {free} free bytes holds no page of {page_bytes} bytes"
        )
    return num_pages


def _max_model_len(config: EngineConfig, loaded: LoadedModel, pool_tokens: int) -> int:
    """The smaller of what the model, the settings and the pool allow."""
    limit = loaded.config.max_positions
    wanted = config.max_model_len
    if wanted is not None and wanted > limit:
        raise ConfigError(f"max_model_len {wanted} is above the model's own limit of {limit} tokens")
    if wanted is not None and wanted > pool_tokens:
        raise ConfigError(f"max_model_len {wanted} is above the KV cache's {pool_tokens} tokens")
    return min(wanted or limit, pool_tokens)


def _backend_name(
    config: EngineConfig, attention: AttentionConfig, dtype: torch.dtype, device: torch.device
) -> str:
    """The backend asked for; else the device's own kernels where they are there and know the model, else torch's."""
    if config.attention_backend != "auto":
        return config.attention_backend
    if device.type == "cuda" and flashinfer.unavailable(attention, dtype, device) is None:
        return "flashinfer"
    return "cpu" if device.type == "cpu" and native.supports(dtype) else "torch"


def _kv_dtype(config: EngineConfig, dtype: torch.dtype, backend_name: str) -> torch.dtype:
    """Of KV pages; raises ConfigError where nothing here attends to such."""
    if config.kv_cache_dtype == "auto":
        return dtype
    where = f"kv_cache_dtype {config.kv_cache_dtype!r}"
    if (reason := native.unavailable()) is not None:
        raise ConfigError(f"{where}: {reason}")
    if backend_name != "cpu" or not native.supports(dtype):
        raise ConfigError(
            f"{where} needs the cpu attention backend and float32 or bfloat16, not {backend_name} and {dtype}"
        )
    return torch.int8
