"""Attention as the textbook has it: dense, in float64, one request and one head at a time."""

import torch

from .base import check_metadata, check_pool
from .config import AttentionConfig
from .kv_pool import KVPool
from .metadata import AttentionMetadata
from .qkv import QkvSplitter


class ReferenceBackend:
    """The oracle of the other backends' tests: slow and obviously right."""

    def __init__(self, config: AttentionConfig, pool: KVPool) -> None:
        check_pool(config, pool)
        self._config = config
        self._splitter = QkvSplitter(config)
        self._pool = pool
        self._metadata: AttentionMetadata | None = None

    def plan(self, metadata: AttentionMetadata) -> None:
        """See AttentionBackend."""
        check_metadata(metadata, self._pool)
        self._splitter.plan(metadata, self._pool.device)
        self._metadata = metadata

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend."""
        step = self._metadata
        assert step is not None, "forward before plan"
        self._pool.await_layer(layer)
        for token, slot in enumerate(step.slot_mapping.tolist()):
            page, offset = divmod(slot, step.page_size)
            self._pool.k[layer][page, offset] = k[token]
            self._pool.v[layer][page, offset] = v[token]
        out = torch.empty_like(q)
        for request, kv_len in enumerate(step.kv_lens.tolist()):
            rows = slice(int(step.qo_indptr[request]), int(step.qo_indptr[request + 1]))
            pages = step.kv_indices[step.kv_indptr[request] : step.kv_indptr[request + 1]].tolist()
            keys = torch.cat([self._pool.k[layer][page] for page in pages])[:kv_len]
            values = torch.cat([self._pool.v[layer][page] for page in pages])[:kv_len]
            visible = torch.from_numpy(step.request_mask(request)).to(q.device)
            out[rows] = self._attend(layer, q[rows], keys, values, visible).to(q.dtype)
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
        self, layer: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """visible: bool [tokens, keys], but for the layer's window."""
        q_pos = torch.arange(len(keys) - len(q), len(keys), device=q.device)[:, None]
        k_pos = torch.arange(len(keys), device=q.device)[None, :]
        window = self._config.window(layer)
        if window is not None:
            visible = visible & (k_pos > q_pos - window)
        out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
        for head in range(self._config.num_heads):
            kv_head = head // self._config.group_size
            logits = q[:, head].double() @ keys[:, kv_head].double().T * self._config.scale
            if self._config.logits_soft_cap is not None:
                logits = self._config.logits_soft_cap * torch.tanh(logits / self._config.logits_soft_cap)
            weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
            out[:, head] = weights @ values[:, kv_head].double()
        return out
