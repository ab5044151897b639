"""From a GGUF file's metadata to the configuration mapping Hugging Face models carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trunkline.runtime.errors import LoadError, UnknownArchitectureError

from .gguf_file import GGUFFile

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_FLOATS = {"F32": "float32", "F16": "float16"}
_SAMPLING_DEFAULTS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
}


def hf_config(file: GGUFFile) -> dict[str, Any]:
    """The `config.json` mapping that describes this file's model.

    Raises UnknownArchitectureError for an architecture, expert mixture or RoPE scaling that can't be
    expressed, and LoadError for metadata that is missing or of the wrong type.
    """
    architecture = file.architecture
    if architecture not in _CLASSES:
        raise UnknownArchitectureError(
            f"{file.path}: architecture {architecture!r} is not supported ({', '.join(_CLASSES)} are)"
        )
    if file.metadata.get(f"{architecture}.expert_count", 0):
        raise UnknownArchitectureError(
            f"{file.path}: {architecture} with a mixture of experts is not supported"
        )
    _check_layers(file)
    heads = _integer(file, "attention.head_count")
    hidden = _integer(file, "embedding_length")
    config: dict[str, Any] = {
        "model_type": architecture,
        "architectures": [_CLASSES[architecture]],
        "hidden_size": hidden,
        "intermediate_size": _integer(file, "feed_forward_length"),
        "num_hidden_layers": _integer(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _integer(file, "attention.head_count_kv", heads),
        "head_dim": _integer(file, "attention.key_length", hidden // heads),
        "max_position_embeddings": _integer(file, "context_length"),
        "rms_norm_eps": _number(file, "attention.layer_norm_rms_epsilon"),
        "rope_theta": _number(file, "rope.freq_base", 10000.0),
        "vocab_size": _vocabulary(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "hidden_act": "silu",
        "torch_dtype": _dtype(file),
    }
    if scaling := _rope_scaling(file, config):
        config["rope_scaling"] = scaling
    if window := file.metadata.get(f"{architecture}.attention.sliding_window", 0):
        # Only Mistral files of the llama architecture carry it, and there it holds for every layer.
        config |= {
            "sliding_window": int(window),
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
        }
    for key, name in (("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")):
        if (value := file.metadata.get(f"tokenizer.ggml.{key}")) is not None:
            config[name] = int(value)
    return config


def generation_defaults(file: GGUFFile) -> dict[str, Any]:
    """The sampling settings the file recommends, under the names `generation_config.json` uses."""
    return {name: file.metadata[key] for key, name in _SAMPLING_DEFAULTS.items() if key in file.metadata}


def _lookup(file: GGUFFile, key: str, default: float | None) -> Any:
    full = f"{file.architecture}.{key}"
    value = file.metadata.get(full, default)
    if value is None:
        raise LoadError(f"{file.path}: metadata {full!r} is missing")
    if isinstance(value, list):
        # Per-layer values: only a model whose layers are all alike can be described.
        if len(set(value)) != 1:
            raise UnknownArchitectureError(
                f"{file.path}: {full!r} differs from layer to layer, not supported"
            )
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LoadError(f"{file.path}: metadata {full!r} is {value!r}, a number was expected")
    return value


def _integer(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = int(_lookup(file, key, default))
    if value < 1:
        raise LoadError(
            f"{file.path}: metadata '{file.architecture}.{key}' is {value}, at least 1 was expected"
        )
    return value


def _number(file: GGUFFile, key: str, default: float | None = None) -> float:
    return _tidy(_lookup(file, key, default))


def _tidy(value: float) -> float:
    """The shortest decimal with the same float32 value: 1e-06 was stored as 9.999999974752427e-07."""
    return float(str(np.float32(value)))


def _vocabulary(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise LoadError(f"{file.path}: there is no 'token_embd.weight' matrix (a vocabulary-only file?)")
    return embedding.shape[0]


def _check_layers(file: GGUFFile) -> None:
    """The stated number of layers is the number there are; a wrong one could ask for any amount of memory."""
    stated = _integer(file, "block_count")
    present = len({name.split(".")[1] for name in file.tensors if name.startswith("blk.")})
    if stated != present:
        raise LoadError(
            f"{file.path}: '{file.architecture}.block_count' is {stated}, but there are {present} layers"
        )


def _dtype(file: GGUFFile) -> str:
    """What the biggest matrices are stored as; bfloat16 for anything quantised."""
    widest = max(file.tensors.values(), key=lambda tensor: tensor.num_bytes)
    return _FLOATS.get(widest.kind.name, "bfloat16")


def _rope_scaling(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, config)
    kind = file.metadata.get(f"{file.architecture}.rope.scaling.type", "none")
    old_linear = file.metadata.get(f"{file.architecture}.rope.scale_linear", 1.0)
    if kind == "none":
        return {"rope_type": "linear", "factor": _tidy(old_linear)} if old_linear != 1.0 else None
    factor = _number(file, "rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn_scaling(file, factor)
    raise UnknownArchitectureError(
        f"{file.path}: RoPE scaling {kind!r} is not supported (linear, yarn, llama3 are)"
    )


def _yarn_scaling(file: GGUFFile, factor: float) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _integer(file, "rope.scaling.original_context_length"),
    }
    attention = _number(file, "rope.scaling.attn_factor", 1.0)
    if attention != 1.0:
        # llama.cpp multiplies the usual magnitude correction by it; Hugging Face states the product.
        scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if f"{file.architecture}.rope.scaling.{key}" in file.metadata:
            scaling[name] = _number(file, f"rope.scaling.{key}")
    return scaling


def _llama3_scaling(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    """The four numbers behind `rope_freqs.weight`.

    The file stores the finished divisor of each frequency, the configuration the rule that makes them. Every
    Llama 3 model uses the same band (1 to 4 periods in 8192 tokens), so only the factor is left to find; the
    divisors are then made again and compared, and anything else is refused.
    """
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.kind.name != "F32":
        raise UnknownArchitectureError(
            f"{file.path}: 'rope_freqs.weight' is {tensor.kind.name}, F32 was expected"
        )
    stored = file.raw(tensor).view(np.float32)
    scaling = {
        "rope_type": "llama3",
        "factor": _tidy(float(stored.max())),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = _llama3_divisors(scaling, config["rope_theta"], config["head_dim"])
    if len(expected) != len(stored) or not np.allclose(stored, expected, rtol=1e-4):
        raise UnknownArchitectureError(
            f"{file.path}: the divisors in 'rope_freqs.weight' are not those of Llama 3"
        )
    return scaling


def _llama3_divisors(scaling: dict[str, Any], theta: float, head_dim: int) -> Sequence[float]:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for pair in range(head_dim // 2):
        periods = scaling["original_max_position_embeddings"] / (2 * math.pi * theta ** (2 * pair / head_dim))
        blend = min(max((periods - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - blend) / scaling["factor"] + blend))
    return divisors
