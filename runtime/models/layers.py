"""The parts that llama-like decoders are made of, for flat batches of tokens; projections are fused."""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from trunkline.attention import AttentionBackend

from .config import ModelConfig
from .rope import rotate
from .weights import ParameterTable


class Linear:
    """x [tokens, in] -> [tokens, sum of rows]; the (name, rows) parts are the projections it fuses."""

    def __init__(
        self, table: ParameterTable, parts: Sequence[tuple[str, int]], in_features: int, bias: bool
    ) -> None:
        self.weight = table.fused([(f"{name}.weight", rows) for name, rows in parts], in_features)
        self.bias = table.fused([(f"{name}.bias", rows) for name, rows in parts]) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class RMSNorm:
    """x / rms(x) · weight over the last dimension, in float32 inside (Zhang & Sennrich, 2019)."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return (wide * scale).to(x.dtype).mul_(self.weight)


class Attention:
    """Fused QKV projection, optional QK norm, rotary embedding, paged attention, output projection."""

    def __init__(self, config: ModelConfig, table: ParameterTable, prefix: str) -> None:
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        rows = [(f"{prefix}.q_proj", heads * dim), (f"{prefix}.k_proj", kv_heads * dim)]
        rows.append((f"{prefix}.v_proj", kv_heads * dim))
        self._heads = (heads, kv_heads, kv_heads)
        self._qkv = Linear(table, rows, config.hidden_size, config.qkv_bias)
        self._out = Linear(table, [(f"{prefix}.o_proj", config.hidden_size)], heads * dim, config.output_bias)
        self._qk_norm: RMSNorm | None = None
        if config.qk_norm:
            parts = [(f"{prefix}.q_norm.weight", heads), (f"{prefix}.k_norm.weight", kv_heads)]
            self._qk_norm = RMSNorm(table.repeated(parts, dim), config.rms_norm_eps)

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, backend: AttentionBackend, layer: int
    ) -> torch.Tensor:
        q_heads, k_heads, v_heads = self._heads
        qkv = self._qkv(x).view(len(x), q_heads + k_heads + v_heads, -1)
        qk, v = qkv[:, : q_heads + k_heads], qkv[:, q_heads + k_heads :]
        if self._qk_norm is not None:
            qk = self._qk_norm(qk)
        qk = rotate(qk, cos, sin)
        out = backend.forward(layer, qk[:, :q_heads], qk[:, q_heads:], v)
        return self._out(out.flatten(1))


class MLP:
    """down(silu(gate(x)) · up(x)), gate and up fused (SwiGLU; Shazeer, 2020)."""

    def __init__(self, config: ModelConfig, table: ParameterTable, prefix: str) -> None:
        size = config.intermediate_size
        parts = [(f"{prefix}.gate_proj", size), (f"{prefix}.up_proj", size)]
        self._gate_up = Linear(table, parts, config.hidden_size, config.mlp_bias)
        self._down = Linear(table, [(f"{prefix}.down_proj", config.hidden_size)], size, config.mlp_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(F.silu(gate).mul_(up))


class DecoderLayer:
    """Pre-norm attention and MLP, each added to the residual stream in place."""

    def __init__(self, config: ModelConfig, table: ParameterTable, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        self._layer = layer
        self._attention_norm = norm(config, table, f"{prefix}.input_layernorm")
        self._attention = Attention(config, table, f"{prefix}.self_attn")
        self._mlp_norm = norm(config, table, f"{prefix}.post_attention_layernorm")
        self._mlp = MLP(config, table, f"{prefix}.mlp")

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, backend: AttentionBackend
    ) -> torch.Tensor:
        hidden += self._attention(self._attention_norm(hidden), cos, sin, backend, self._layer)
        hidden += self._mlp(self._mlp_norm(hidden))
        return hidden


def norm(config: ModelConfig, table: ParameterTable, name: str) -> RMSNorm:
    """An RMSNorm over the hidden size."""
    return RMSNorm(table.fused([(f"{name}.weight", config.hidden_size)]), config.rms_norm_eps)
