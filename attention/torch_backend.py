"""Attention with torch's own kernels: requests of one step in a few padded batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from .base import check_metadata, check_pool
from .config import AttentionConfig
from .kv_pool import KVPool
from .metadata import AttentionMetadata, Int64Array
from .qkv import QkvSplitter

# Above this many padded keys a batch is cut: that bounds the gather buffers, and a further call costs little.
_MAX_BATCH_KEYS = 32768
# Padding that is cheaper than one more kernel call per layer.
_FREE_PADDING = 512


class TorchBackend:
    """Gathers the pages of each batch of requests and runs torch's fused attention on them.

    A batch holds requests with equally many new tokens (all decodes, say), padded to the longest one's
    keys. Index tensors and masks are made once per step and serve every layer with the same window.
    """

    def __init__(self, config: AttentionConfig, pool: KVPool) -> None:
        check_pool(config, pool)
        self._config = config
        self._splitter = QkvSplitter(config)
        self._pool = pool
        self._slots = torch.empty(0, dtype=torch.int64)
        self._batches: dict[int | None, list[_Batch]] = {}
        self._keys, self._values = pool.data.new_empty(
            2, 0, config.page_size, config.num_kv_heads, config.head_dim
        )

    def plan(self, metadata: AttentionMetadata) -> None:
        """See AttentionBackend."""
        check_metadata(metadata, self._pool)
        self._splitter.plan(metadata, self._pool.device)
        self._slots = torch.from_numpy(metadata.slot_mapping).to(self._pool.device)
        groups = list(_group(metadata.q_lens, metadata.kv_lens))
        self._batches = {
            window: [_make_batch(self._config, self._pool, metadata, requests, window) for requests in groups]
            for window in self._config.windows
        }
        num_pages = max((batch.pages.numel() for plan in self._batches.values() for batch in plan), default=0)
        if num_pages > len(self._keys):
            self._keys, self._values = self._pool.data.new_empty(2, num_pages, *self._keys.shape[1:])

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend."""
        self._pool.await_layer(layer)
        self._pool.store(layer, self._slots, k, v)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for batch in self._batches[self._config.window(layer)]:
            keys = batch.gather(self._pool.k[layer], self._keys)
            values = batch.gather(self._pool.v[layer], self._values)
            out[batch.rows] = self._attend(batch, q[batch.rows], keys, values)
        return out

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
        return self.forward(layer, *self._splitter.split(qkv, cos, sin, norm_weight, norm_eps))

    def _attend(
        self, batch: "_Batch", q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """q [requests, q_len, heads, head_dim], keys and values [requests, keys, kv_heads, head_dim]."""
        # A decode's query heads become rows of their KV head: each key is then read once, not once per head.
        fold = q.shape[1] == 1
        q_heads = q.view(len(q), -1, self._config.group_size, q.shape[-1]) if fold else q.transpose(1, 2)
        k_heads, v_heads = keys.transpose(1, 2), values.transpose(1, 2)
        if self._config.logits_soft_cap is not None:
            out = _soft_capped(
                q_heads, k_heads, v_heads, batch.mask, self._config.scale, self._config.logits_soft_cap
            )
        else:
            mask = None if batch.mask is None else batch.mask.expand(-1, -1, q_heads.shape[2], -1)
            out = scaled_dot_product_attention(
                q_heads,
                k_heads,
                v_heads,
                attn_mask=mask,
                is_causal=batch.is_causal,
                scale=self._config.scale,
                enable_gqa=not fold,
            )
        return out.reshape(q.shape) if fold else out.transpose(1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Requests with equally many new tokens, and the pages that one window lets them see.

    rows [requests, q_len]: their tokens in the step. pages [requests · pages]: page tables, padded with
    page 0. unused: gathered slots that hold no key of the request. mask [requests, 1, q_len, keys]: 0 or
    -inf, None where all is visible or `is_causal` says as much.
    """

    rows: torch.Tensor
    pages: torch.Tensor
    unused: torch.Tensor
    mask: torch.Tensor | None
    is_causal: bool

    def gather(self, pool: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """The pages of one layer as [requests, keys, kv_heads, head_dim]; slots without a key are zero."""
        found = buffer[: len(self.pages)]
        torch.index_select(pool, 0, self.pages, out=found)
        # Zero weight times NaN is NaN: what a free slot holds has to go before the kernel sees it.
        found.flatten(0, 1).index_fill_(0, self.unused, 0.0)
        return found.view(len(self.rows), -1, *pool.shape[2:])


def _group(q_lens: npt.NDArray[np.int32], kv_lens: npt.NDArray[np.int32]) -> Iterator[Int64Array]:
    """Cuts a step into batches of requests: equal q_len, similar kv_len, bounded padding."""
    order = np.lexsort((-kv_lens, q_lens))
    first, total = 0, 0
    for i, request in enumerate(order):
        longest = int(kv_lens[order[first]])
        padded = longest * (i + 1 - first)
        total += int(kv_lens[request])
        if i > first and (
            q_lens[request] != q_lens[order[first]]
            or padded > _MAX_BATCH_KEYS
            or padded > 1.125 * total + _FREE_PADDING
        ):
            yield order[first:i]
            first, total = i, int(kv_lens[request])
    if len(order):
        yield order[first:]


def _make_batch(
    config: AttentionConfig, pool: KVPool, step: AttentionMetadata, requests: Int64Array, window: int | None
) -> _Batch:
    page_size = config.page_size
    q_len = int(step.q_lens[requests[0]])
    kv_lens = step.kv_lens[requests].astype(np.int64)[:, None]
    starts = kv_lens - q_len
    first_page = np.zeros_like(starts) if window is None else np.maximum(starts - window + 1, 0) // page_size
    num_pages = -(-kv_lens // page_size) - first_page
    column = np.arange(num_pages.max())
    entry = step.kv_indptr[requests].astype(np.int64)[:, None] + first_page + column
    pages = np.where(column < num_pages, step.kv_indices[np.minimum(entry, len(step.kv_indices) - 1)], 0)

    k_pos = first_page * page_size + np.arange(len(column) * page_size)
    q_pos = starts + np.arange(q_len)
    is_causal = q_len > 1 and not starts.any() and config.logits_soft_cap is None and step.mask is None
    is_causal = is_causal and (window is None or window >= q_len)
    return _Batch(
        rows=_tensor(step.qo_indptr[requests][:, None] + np.arange(q_len), pool),
        pages=_tensor(pages.ravel(), pool),
        unused=_tensor(np.flatnonzero(k_pos >= kv_lens), pool),
        mask=None if is_causal else _mask(_hidden(step, requests, q_pos, k_pos, window, pool), pool),
        is_causal=is_causal,
    )


def _hidden(
    step: AttentionMetadata,
    requests: Int64Array,
    q_pos: Int64Array,
    k_pos: Int64Array,
    window: int | None,
    pool: KVPool,
) -> torch.Tensor:
    """What each new token does not see, [requests, q_len, keys]; q_pos [requests, q_len], k_pos [requests, keys]."""
    queries, keys = _tensor(q_pos, pool)[:, :, None], _tensor(k_pos, pool)[:, None, :]
    if step.mask is None:
        hidden = keys > queries
    else:
        unseen = np.ones((*q_pos.shape, k_pos.shape[1]), bool)
        for row, request in enumerate(requests.tolist()):
            visible = step.request_mask(request)[:, int(k_pos[row, 0]) :]
            unseen[row, :, : visible.shape[1]] = ~visible
        hidden = torch.from_numpy(unseen).to(pool.device)
    if window is not None:
        hidden |= keys <= queries - window
    return hidden


def _mask(hidden: torch.Tensor, pool: KVPool) -> torch.Tensor | None:
    if not hidden.any():
        return None
    mask = torch.zeros(hidden.shape, dtype=pool.dtype, device=pool.device)
    return mask.masked_fill_(hidden, -torch.inf)[:, None]


def _tensor(array: npt.NDArray[np.integer], pool: KVPool) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64, copy=False)).to(pool.device)


def _soft_capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float, cap: float
) -> torch.Tensor:
    """Attention with capped logits, which the fused kernel lacks; all [batch, heads, rows, head_dim]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = (q @ k.transpose(-1, -2)).float().mul_(scale / cap).tanh_().mul_(cap)
    if mask is not None:
        logits += mask
    return logits.softmax(-1).to(v.dtype) @ v
