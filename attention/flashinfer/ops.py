"""FlashInfer's kernels between the matrix products, behind the interface of attention/fused.py."""

from typing import Any

import torch

from trunkline.attention.fused import rms_norm_torch


class FusedOps:
    """Norms, rotation and activation, in one pass each; bfloat16 or float16, last dimension dense."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._tables: dict[tuple[int, int], torch.Tensor] = {}
        self._head_norms: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor] | None] = {}

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See fused.rms_norm."""
        normed: torch.Tensor = self._library.rmsnorm(x, weight, eps)
        return normed

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See fused.add_rms_norm. x itself becomes the result."""
        self._library.fused_add_rmsnorm(x, residual, weight, eps)
        return x

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See fused.silu_mul."""
        # The kernel reads rows end to end, whatever their stride.
        product: torch.Tensor = self._library.silu_and_mul(gate_up.contiguous())
        return product

    def norm_heads(self, qkv: torch.Tensor, num_heads: int, weight: torch.Tensor, eps: float) -> None:
        """Normalises the queries and keys of qkv [tokens, heads, head_dim] in place.

        weight [num_heads + num_kv_heads, head_dim]: one row for all queries and one for all keys, as the kernels want
        it, is checked for once; other weights take torch's operators.
        """
        num_normed = len(weight)
        rows = self._rows(weight, num_heads)
        if rows is None:
            qkv[:, :num_normed] = rms_norm_torch(qkv[:, :num_normed], weight, eps)
            return
        for part, row in zip((qkv[:, :num_heads], qkv[:, num_heads:num_normed]), rows, strict=True):
            self._library.rmsnorm(part, row, eps, out=part)

    def rotate(
        self,
        qkv: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        positions: torch.Tensor,
        *angles: torch.Tensor,
    ) -> None:
        """Rotates the queries and keys of qkv in place; angles: the cos and sin tables, positions int32 [tokens]."""
        cos, sin = angles
        q, k = qkv[:, :num_heads], qkv[:, num_heads : num_heads + num_kv_heads]
        self._library.apply_rope_with_cos_sin_cache_inplace(
            positions, q, k, qkv.shape[-1], self._table(cos, sin), is_neox=True
        )

    def _table(self, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        key = cos.data_ptr(), sin.data_ptr()
        if key not in self._tables:
            self._tables[key] = torch.cat([cos, sin], -1)
        return self._tables[key]

    def _rows(self, weight: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        key = weight.data_ptr(), num_heads
        if key not in self._head_norms:
            q, k = weight[:num_heads], weight[num_heads:]
            alike = torch.equal(q, q[:1].expand_as(q)) and torch.equal(k, k[:1].expand_as(k))
            self._head_norms[key] = (q[0], k[0]) if alike else None
        return self._head_norms[key]
