"""Attention on CPUs with the native kernels of csrc/."""

import ctypes
import weakref

import torch

from trunkline.errors import ConfigError

from . import native, structs
from .base import check_metadata, check_pool
from .config import AttentionConfig
from .errors import MetadataError
from .kv_pool import KVPool
from .memory import advise_huge_pages
from .metadata import AttentionMetadata

_MAX_HEAD_DIM = 512


class CpuBackend:
    """Paged attention that reads keys and values where they lie, each tile once for all heads of a group.

    A token's result depends on its query, keys and values alone: not on how its prompt was cut into
    chunks, which other requests are in the step or how many threads there are (bit for bit, at one level).
    Requests with few new tokens share the tiles of a common prefix. Weights are bfloat16 inside where
    the pool is and the machine multiplies bfloat16; sums are float32.
    """

    def __init__(self, config: AttentionConfig, pool: KVPool, level: str | None = None) -> None:
        """Binds to a pool of float32, bfloat16 or int8 in host memory; raises ConfigError, NativeUnavailable."""
        check_pool(config, pool, takes_int8=True)
        if pool.device.type != "cpu" or pool.dtype not in structs.PAGE_STORAGE:
            raise ConfigError(f"attention: the cpu backend has no kernels for {pool.dtype} on {pool.device}")
        if config.head_dim > _MAX_HEAD_DIM:
            raise ConfigError(
                f"attention: head_dim is {config.head_dim}; the cpu backend takes {_MAX_HEAD_DIM}"
            )
        self.config = config
        self._pool = pool
        self.library = native.library(level)
        self._metadata: AttentionMetadata | None = None
        advise_huge_pages(pool.data)
        shape = structs.Shape(config.num_heads, config.num_kv_heads, config.head_dim, config.page_size)
        self.attention = ctypes.c_void_p(self.library.attention_new(shape))
        weakref.finalize(self, self.library.attention_free, self.attention)

    @property
    def level(self) -> str:
        """The instruction set in use."""
        return self.library.level

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether queries, keys and values of this dtype go with the pages."""
        return dtype in structs.STORAGE if self._pool.dtype == torch.int8 else dtype == self._pool.dtype

    @property
    def metadata(self) -> AttentionMetadata:
        """Of the step that is planned."""
        assert self._metadata is not None, "forward before plan"
        return self._metadata

    def layer(self, layer: int, dtype: torch.dtype) -> structs.Layer:
        """A layer's pages and window, for the kernels; dtype: of queries and results."""
        config = self.config
        return structs.Layer(
            pages=self._pages(layer),
            scale=config.scale,
            soft_cap=config.logits_soft_cap or 0.0,
            window=config.window(layer) or 0,
            storage=structs.STORAGE[dtype],
        )

    def _pages(self, layer: int) -> structs.Pages:
        pool, k = self._pool, self._pool.k[layer]
        return structs.Pages(
            k=k.data_ptr(),
            v=pool.v[layer].data_ptr(),
            page_stride=k.stride(0),
            slot_stride=k.stride(1),
            kv_head_stride=k.stride(2),
            scales=pool.rows_bytes,
            page_size=pool.page_size,
            storage=structs.PAGE_STORAGE[pool.dtype],
        )

    def plan(self, metadata: AttentionMetadata) -> None:
        """See AttentionBackend."""
        check_metadata(metadata, self._pool)
        if metadata.mask is not None:
            raise MetadataError("the cpu backend takes no masks; the torch backend does")
        self._metadata = metadata  # the kernels read its arrays until the next plan
        step = structs.Step(
            metadata.qo_indptr.ctypes.data,
            metadata.kv_indptr.ctypes.data,
            metadata.kv_indices.ctypes.data,
            metadata.kv_last_page_len.ctypes.data,
            metadata.num_requests,
            torch.get_num_threads(),
        )
        self.library.attention_plan(self.attention, step)

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend. `takes` q's, k's and v's dtype; rows may be strided, heads may not."""
        k, v = self._rows(k), self._rows(v)
        store = structs.Store(
            k=k.data_ptr(),
            v=v.data_ptr(),
            pages=self._pages(layer),
            slots=self.metadata.slot_mapping.ctypes.data,
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            tokens=len(k),
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            storage=structs.STORAGE[k.dtype],
            num_threads=torch.get_num_threads(),
        )
        self.library.store(store)
        return self._attend(layer, self._rows(q))

    def forward_fused(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm_weight: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """See AttentionBackend."""
        config, qkv = self.config, self._rows(qkv)
        q = qkv.new_empty(len(qkv), config.num_heads, config.head_dim)
        job = structs.RotaryStore(
            qkv=qkv.data_ptr(),
            q=q.data_ptr(),
            pages=self._pages(layer),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            positions=self.metadata.positions.ctypes.data,
            slots=self.metadata.slot_mapping.ctypes.data,
            norm_weight=None if norm_weight is None else norm_weight.data_ptr(),
            qkv_stride=qkv.stride(0),
            tokens=len(qkv),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=norm_eps,
            storage=structs.STORAGE[qkv.dtype],
            num_threads=torch.get_num_threads(),
        )
        self.library.rotary_store(job)
        return self._attend(layer, q)

    def _attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        job = self.layer(layer, q.dtype)
        job.q, job.q_stride = q.data_ptr(), q.stride(0)
        job.out, job.out_stride = out.data_ptr(), out.stride(0)
        job.num_threads = torch.get_num_threads()
        self.library.attention_run(self.attention, job)
        return out

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        """x itself where each token's heads lie end to end, else a copy for which that is so."""
        assert self.takes(x.dtype), f"{x.dtype} given to a pool of {self._pool.dtype}"
        return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
