"""What the decoder needs to know of a checkpoint, read from its config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trunkline.attention import AttentionConfig
from trunkline.runtime.errors import LoadError, UnknownArchitectureError

from .rope import RopeConfig

_Traits = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and traits of a decoder-only model.

    `sliding_window` has one entry per layer (positions a query sees, itself included; None: all), or is
    None where no layer has a window. `qkv_bias`, `output_bias` and `mlp_bias` say which projections add a
    bias; `qk_norm`, whether each query and key head is normalised before the rotary embedding;
    `tied_embeddings`, whether the embedding is also the output projection. Raises LoadError for sizes that
    cannot be.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    sliding_window: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise LoadError(
                f"{self.architecture}: {self.num_heads} heads are no multiple of {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise LoadError(
                f"{self.architecture}: head_dim {self.head_dim} is odd; the rotary embedding needs pairs"
            )
        if self.sliding_window is not None and len(self.sliding_window) != self.num_layers:
            raise LoadError(
                f"{self.architecture}: {len(self.sliding_window)} layer_types for {self.num_layers} layers"
            )

    @classmethod
    def from_hf_config(cls, hf: Mapping[str, Any]) -> "ModelConfig":
        """Reads the dictionary of a Hugging Face config.json, transformers 4 or 5.

        Raises UnknownArchitectureError for an architecture, activation, quantisation or RoPE scaling that
        nothing here runs, LoadError for a size that is missing or no positive integer.
        """
        architecture = _architecture(hf)
        _refuse_unsupported(hf, architecture)
        heads = _size(hf, "num_attention_heads")
        hidden = _size(hf, "hidden_size")
        layers = _size(hf, "num_hidden_layers")
        traits = _FAMILIES[architecture](hf, layers)
        return cls(
            architecture=architecture,
            vocab_size=_size(hf, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(hf, "intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=_size(hf, "num_key_value_heads", heads),
            head_dim=_size(hf, "head_dim", traits.pop("head_dim", hidden // heads)),
            max_positions=_size(hf, "max_position_embeddings"),
            rms_norm_eps=float(hf.get("rms_norm_eps", 1e-6)),
            rope=RopeConfig.from_hf_config(hf),
            tied_embeddings=bool(hf.get("tie_word_embeddings", False)),
            **traits,
        )

    def attention_config(self, page_size: int) -> AttentionConfig:
        """The attention layers' shapes for pages of `page_size` tokens."""
        return AttentionConfig(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            page_size=page_size,
            scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window,
        )


def supported_architectures() -> list[str]:
    """Names, as in a config.json's `architectures`, of what `ModelConfig.from_hf_config` reads."""
    return sorted(_FAMILIES)


def _llama(hf: Mapping[str, Any], num_layers: int) -> _Traits:
    bias = bool(hf.get("attention_bias", False))
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bool(hf.get("mlp_bias", False))}


def _mistral(hf: Mapping[str, Any], num_layers: int) -> _Traits:
    window = hf.get("sliding_window", 4096)
    return {"sliding_window": None if window is None else (window,) * num_layers}


def _qwen2(hf: Mapping[str, Any], num_layers: int) -> _Traits:
    return {"qkv_bias": True, "sliding_window": _qwen_windows(hf, num_layers)}


def _qwen3(hf: Mapping[str, Any], num_layers: int) -> _Traits:
    bias = bool(hf.get("attention_bias", False))
    windows = _qwen_windows(hf, num_layers)
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "head_dim": 128,
        "sliding_window": windows,
    }


_FAMILIES: dict[str, Callable[[Mapping[str, Any], int], _Traits]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}


def _qwen_windows(hf: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...] | None:
    """Layers from `max_window_layers` on have the window, unless `layer_types` says it layer by layer."""
    window = hf.get("sliding_window", 4096)
    if not hf.get("use_sliding_window", False) or window is None:
        return None
    first = hf.get("max_window_layers", 28)
    kinds = hf.get("layer_types") or ["sliding_attention" if i >= first else "" for i in range(num_layers)]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _architecture(hf: Mapping[str, Any]) -> str:
    """The first entry of `architectures`; where there is none, the one that `model_type` stands for."""
    names = hf.get("architectures") or [f"{str(hf.get('model_type', '')).capitalize()}ForCausalLM"]
    if names[0] not in _FAMILIES:
        what = names[0] if hf.get("architectures") else f"of model_type {hf.get('model_type')!r}"
        raise UnknownArchitectureError(
            f"architecture {what} is not supported; supported: {', '.join(supported_architectures())}"
        )
    return str(names[0])


def _refuse_unsupported(hf: Mapping[str, Any], architecture: str) -> None:
    activation = hf.get("hidden_act", "silu")
    if activation != "silu":
        raise UnknownArchitectureError(
            f"{architecture}: hidden_act {activation!r} is not supported; only 'silu' is"
        )
    quantization = hf.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "of an unnamed kind")
        raise UnknownArchitectureError(
            f"{architecture}: quantization {method} of safetensors is not supported"
        )


def _size(hf: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = hf.get(name)
    if value is None:
        if default is None:
            raise LoadError(f"the model's config has no {name}")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LoadError(f"the model's config says {name} {value!r}; a positive integer is needed")
    return value
