"""The contract of an attention backend, and how one is found by name."""

from collections.abc import Hashable
from importlib import import_module
from typing import Protocol, cast, runtime_checkable

import torch

from trunkline.errors import ConfigError

from .config import AttentionConfig
from .errors import MetadataError, UnknownBackend
from .kv_pool import KVPool
from .metadata import AttentionMetadata

_BACKENDS = {
    "cpu": ("trunkline.attention.cpu", "CpuBackend"),
    "flashinfer": ("trunkline.attention.flashinfer", "FlashInferBackend"),
    "reference": ("trunkline.attention.reference", "ReferenceBackend"),
    "torch": ("trunkline.attention.torch_backend", "TorchBackend"),
}


class AttentionBackend(Protocol):
    """Paged causal attention over one KV pool.

    Bottom-right aligned: the last new token of a request sees all its keys, the one before all but the
    last, within the layer's window. What lies in slots that no request of the step has written never
    reaches a result, NaN included.
    """

    def __init__(self, config: AttentionConfig, pool: KVPool) -> None:
        """Binds to a pool; raises ConfigError where pool and config differ."""

    def plan(self, metadata: AttentionMetadata) -> None:
        """Prepares a step, once for all layers; raises MetadataError for pages the pool does not have."""

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Stores k and v [tokens, num_kv_heads, head_dim], then attends with q [tokens, num_heads, head_dim].

        Returns [tokens, num_heads, head_dim] in q's dtype. Tokens lie as the planned metadata says.
        """

    def forward_fused(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm_weight: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """Normalises and rotates queries and keys, stores, attends: `forward` from the fused projection.

        qkv is [tokens, num_heads + 2 num_kv_heads, head_dim] in the pool's dtype; cos and sin are the whole tables,
        float32 [max_positions, head_dim / 2]. With norm_weight [num_heads + num_kv_heads, head_dim] queries and keys
        pass an RMSNorm before they are rotated. Returns [tokens, num_heads, head_dim]; qkv may be overwritten.
        """


@runtime_checkable
class CapturableBackend(AttentionBackend, Protocol):
    """A backend whose decodes a CUDA graph can hold: for a given number of rows, all it reads keeps its address."""

    def reserve_rows(self, num_rows: int) -> None:
        """Makes room for graphs of up to num_rows rows; once, before the first `plan_padded`."""

    def plan_padded(self, metadata: AttentionMetadata, num_rows: int) -> Hashable | None:
        """Plans decodes (maybe none) for a graph of num_rows rows; rows beyond them read and write page 0 only.

        Returns which kernels `forward` will launch, for a graph of that key to be replayed, or None where the step
        does not fit a graph and has to be planned by `plan`.
        """


def backend_names() -> list[str]:
    """Names that `make_backend` knows."""
    return sorted(_BACKENDS)


def make_backend(name: str, config: AttentionConfig, pool: KVPool) -> AttentionBackend:
    """Loads the backend of this name and binds it to a pool.

    Raises UnknownBackend, or ConfigError where pool and config differ.
    """
    if name not in _BACKENDS:
        raise UnknownBackend(f"no attention backend {name!r}; there are {', '.join(backend_names())}")
    module, cls = _BACKENDS[name]
    return cast(type[AttentionBackend], getattr(import_module(module), cls))(config, pool)


def check_pool(config: AttentionConfig, pool: KVPool, takes_int8: bool = False) -> None:
    """Raises ConfigError where the pool's shape is not the one that the config asks for, or its pages are int8."""
    if pool.dtype == torch.int8 and not takes_int8:
        raise ConfigError("attention: a KV pool of torch.int8 needs the cpu backend")
    for name in ("num_layers", "page_size", "num_kv_heads", "head_dim"):
        wanted, found = getattr(config, name), getattr(pool.config, name)
        if wanted != found:
            raise ConfigError(f"attention: {name} is {wanted}, the KV pool was made for {found}")


def check_metadata(metadata: AttentionMetadata, pool: KVPool) -> None:
    """Raises MetadataError where a step does not fit the pool: page size, or pages outside 1..num_pages."""
    if metadata.page_size != pool.config.page_size:
        raise MetadataError(
            f"the step has pages of {metadata.page_size}, the KV pool of {pool.config.page_size}"
        )
    pages = metadata.kv_indices
    outside = pages[(pages < 1) | (pages > pool.num_pages)]
    if len(outside):
        raise MetadataError(f"page {outside[0]} is not within 1..{pool.num_pages}")
