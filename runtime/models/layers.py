"""The parts that llama-like decoders are made of, for flat batches of tokens; projections are fused."""

import torch

from trunkline.attention import AttentionBackend
from trunkline.attention.fused import add_rms_norm, rms_norm
from trunkline.attention.native_decoder import LayerWeights

from .config import ModelConfig
from .rope import RotaryTable
from .weights import ParameterTable


class RMSNorm:
    """x / rms(x) · weight over the hidden size (Zhang & Sennrich, 2019)."""

    def __init__(self, config: ModelConfig, table: ParameterTable, name: str) -> None:
        self.weight = table.fused([(f"{name}.weight", config.hidden_size)])
        self._eps = config.rms_norm_eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The norm of x + residual; the sum stays in `residual`."""
        return add_rms_norm(x, residual, self.weight, self._eps)


class Attention:
    """Fused QKV projection, then norm, rotary embedding and paged attention in the backend, output projection."""

    def __init__(self, config: ModelConfig, table: ParameterTable, prefix: str) -> None:
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        rows = [(f"{prefix}.q_proj", heads * dim), (f"{prefix}.k_proj", kv_heads * dim)]
        rows.append((f"{prefix}.v_proj", kv_heads * dim))
        self._num_heads = heads + 2 * kv_heads
        self.qkv = table.linear(rows, config.hidden_size, config.qkv_bias)
        self.out = table.linear([(f"{prefix}.o_proj", config.hidden_size)], heads * dim, config.output_bias)
        self.norm_weight: torch.Tensor | None = None
        self._norm_eps = config.rms_norm_eps
        if config.qk_norm:
            parts = [(f"{prefix}.q_norm.weight", heads), (f"{prefix}.k_norm.weight", kv_heads)]
            self.norm_weight = table.repeated(parts, dim)

    def __call__(
        self, x: torch.Tensor, rotary: RotaryTable, backend: AttentionBackend, layer: int
    ) -> torch.Tensor:
        qkv = self.qkv(x).view(len(x), self._num_heads, -1)
        out = backend.forward_fused(layer, qkv, rotary.cos, rotary.sin, self.norm_weight, self._norm_eps)
        return self.out(out.flatten(1))


class MLP:
    """down(silu(gate(x)) · up(x)), gate and up fused (SwiGLU; Shazeer, 2020)."""

    def __init__(self, config: ModelConfig, table: ParameterTable, prefix: str) -> None:
        size = config.intermediate_size
        parts = [(f"{prefix}.gate_proj", size), (f"{prefix}.up_proj", size)]
        self.gate_up = table.linear(parts, config.hidden_size, config.mlp_bias, gated=True)
        self.down = table.linear([(f"{prefix}.down_proj", config.hidden_size)], size, config.mlp_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate_up(x))


class DecoderLayer:
    """Pre-norm attention and MLP around a residual stream."""

    def __init__(self, config: ModelConfig, table: ParameterTable, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        self._layer = layer
        self._attention_norm = RMSNorm(config, table, f"{prefix}.input_layernorm")
        self._attention = Attention(config, table, f"{prefix}.self_attn")
        self._mlp_norm = RMSNorm(config, table, f"{prefix}.post_attention_layernorm")
        self._mlp = MLP(config, table, f"{prefix}.mlp")

    def __call__(
        self,
        update: torch.Tensor | None,
        residual: torch.Tensor,
        rotary: RotaryTable,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """The update that comes after this layer; the one before it is added to `residual` in place, in one pass
        with the norm that needs the sum."""
        norm = self._attention_norm
        x = norm(residual) if update is None else norm.add(update, residual)
        attended = self._attention(x, rotary, backend, self._layer)
        return self._mlp(self._mlp_norm.add(attended, residual))

    def packed(self) -> LayerWeights | None:
        """What the native decoder takes, where all weights are in such a form."""
        attention, mlp = self._attention, self._mlp
        qkv, out = attention.qkv.packed, attention.out.packed
        gate_up, down = mlp.gate_up.packed, mlp.down.packed
        if qkv is None or out is None or gate_up is None or down is None:
            return None
        norms = self._attention_norm.weight, self._mlp_norm.weight, attention.norm_weight
        return LayerWeights(*norms, qkv, out, gate_up, down)
