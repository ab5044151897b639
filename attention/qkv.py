"""From a fused projection to rotated queries and keys, with torch operations: for backends without a kernel for it."""

import torch

from .config import AttentionConfig
from .fused import rms_norm_torch
from .metadata import AttentionMetadata


class QkvSplitter:
    """Splits fused rows into q, k and v, normalises and rotates; a step's angles are looked up once for all layers."""

    def __init__(self, config: AttentionConfig) -> None:
        self._num_heads = config.num_heads
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._positions = torch.empty(0, dtype=torch.int64)
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> None:
        """Takes the positions of a step."""
        self._positions = torch.from_numpy(metadata.positions).to(device)
        self._angles = None

    def split(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm_weight: torch.Tensor | None,
        norm_eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v of qkv [tokens, num_heads + 2 num_kv_heads, head_dim]; see `AttentionBackend.forward_fused`."""
        if self._angles is None:
            lookup = (table[self._positions, None].to(qkv.dtype) for table in (cos, sin))
            self._angles = next(lookup), next(lookup)
        qk, v = qkv[:, : self._num_rotated], qkv[:, self._num_rotated :]
        if norm_weight is not None:
            qk = rms_norm_torch(qk, norm_weight, norm_eps)
        qk = rotate(qk, *self._angles)
        return qk[:, : self._num_heads], qk[:, self._num_heads :], v


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns x [tokens, heads, head_dim] by the angles given; a pair is one entry from each half of a head."""
    first, second = x.chunk(2, -1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out_first, out_second = out.chunk(2, -1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return out
