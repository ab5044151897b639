"""The decoder behind llama, mistral, qwen2 and qwen3."""

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import torch

from trunkline.attention import AttentionBackend
from trunkline.attention.cpu import CpuBackend
from trunkline.attention.native_decoder import DecoderWeights, NativeDecoder

from .block_weights import Weight
from .config import ModelConfig
from .layers import DecoderLayer, RMSNorm
from .linear import Form, Linear, linear_form
from .rope import RotaryTable
from .weights import ParameterTable

_EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"


class CausalLM:
    """A decoder-only model over paged attention, for inference.

    Tokens of a step lie end to end, without padding; which request each belongs to is the backend's business.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, form: Form) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._table = ParameterTable(dtype, device, form)
        self._embedding = self._table.embedding(_EMBEDDING, config.vocab_size, config.hidden_size)
        self._layers = [DecoderLayer(config, self._table, layer) for layer in range(config.num_layers)]
        self._norm = RMSNorm(config, self._table, "model.norm")
        if config.tied_embeddings:
            self._head = Linear(form)
        else:
            self._head = self._table.linear([(_HEAD, config.vocab_size)], config.hidden_size)
        self._rotary = RotaryTable(config.rope, config.head_dim, config.max_positions, device)
        self._decoders: WeakKeyDictionary[CpuBackend, NativeDecoder | None] = WeakKeyDictionary()

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        backend: AttentionBackend,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Float32 logits [n, vocab] of the step's rows `logits_rows` [n].

        token_ids is int64 [tokens]; `backend` has planned the step, with positions below `config.max_positions`. Rows
        not asked for cost no output projection.
        """
        residual = self._embedding(token_ids)
        if isinstance(backend, CpuBackend) and (native := self.native_decoder(backend)) is not None:
            return native.forward(backend, residual, logits_rows)
        update: torch.Tensor | None = None
        for layer in self._layers:
            update = layer(update, residual, self._rotary, backend)
        assert update is not None, "a model has at least one layer"
        hidden = self._norm.add(update[logits_rows], residual[logits_rows])
        return self._head(hidden).float()

    def native_decoder(self, backend: CpuBackend) -> NativeDecoder | None:
        """All layers in one call, where this backend and the form of the weights allow it."""
        if backend not in self._decoders:
            weights = self._packed() if backend.takes(self.dtype) else None
            self._decoders[backend] = None if weights is None else NativeDecoder(weights, backend)
        return self._decoders[backend]

    def _packed(self) -> DecoderWeights | None:
        layers = [layer.packed() for layer in self._layers]
        packed = [layer for layer in layers if layer is not None]
        head, norm, rotary = self._head.packed, self._norm.weight, self._rotary
        if head is None or len(packed) < len(layers):
            return None
        return DecoderWeights(packed, norm, head, rotary.cos, rotary.sin, self.config.rms_norm_eps)

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """What `load_weights` must be given: Hugging Face names and shapes."""
        return self._table.shapes

    def load_weights(self, weights: Iterable[tuple[str, Weight]]) -> None:
        """Takes a checkpoint's (Hugging Face name, tensor) pairs, in any order and dtype.

        Rotary frequencies are skipped, and so is `lm_head.weight` where the embedding is tied. Raises
        LoadError that names what is missing, unexpected, given twice or of a wrong shape.
        """
        self._table.load((name, tensor) for name, tensor in weights if not self._is_redundant(name))
        if self.config.tied_embeddings:
            self._embedding.tie(self._head)

    def _is_redundant(self, name: str) -> bool:
        return name.endswith("rotary_emb.inv_freq") or (
            name == f"{_HEAD}.weight" and self.config.tied_embeddings
        )


def build_model(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quantization: str | None = None,
) -> CausalLM:
    """A model without its weights, which `CausalLM.load_weights` brings.

    `quantization` is None; "int8": linears with int8 weights, and inputs rounded to int8 as they come; or "gguf":
    weights that come as `BlockWeight`s stay so. Raises ConfigError for one that is unknown or does not run here.
    """
    device = torch.device(device)
    return CausalLM(config, dtype, device, linear_form(quantization, dtype, device))
