"""Tiny transformers models with random weights, and ours loaded from them."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trunkline.runtime.models import CausalLM, ModelConfig, build_model

VOCAB = 131
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-head-dim": {
        "model_type": "llama",
        "head_dim": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "llama-linear": {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 2.5}},
    "llama-llama3": {
        "model_type": "llama",
        "rope_parameters": {**_LLAMA3, "original_max_position_embeddings": 32, "rope_theta": 500000.0},
    },
    "llama-yarn": {"model_type": "llama", "rope_parameters": _YARN},
    "llama-yarn-mscale": {
        "model_type": "llama",
        "rope_parameters": {
            **_YARN,
            "mscale": 1.3,
            "mscale_all_dim": 0.7,
            "beta_fast": 16,
            "truncate": False,
        },
    },
    "mistral-window": {"model_type": "mistral", "sliding_window": 9},
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 12},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 11,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 24},
    "qwen3-biases": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True, "rope_theta": 1e6},
}


@dataclass(frozen=True)
class Pair:
    """The same weights in transformers and here."""

    theirs: PreTrainedModel
    ours: CausalLM


def hf_config(variant: str) -> PreTrainedConfig:
    """The transformers config of a variant."""
    fields = {**_SIZES, **VARIANTS[variant]}
    return CONFIG_MAPPING[fields.pop("model_type")](**fields)


def config_json(config: PreTrainedConfig) -> dict[str, Any]:
    """What a checkpoint's config.json would hold."""
    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {**config.to_dict(), "architectures": [f"{names[config.model_type]}ForCausalLM"]}


@cache
def make_pair(variant: str, dtype: torch.dtype = torch.float32) -> Pair:
    """A random model large enough in its weights that any mistake moves the logits."""
    config = hf_config(variant)
    torch.manual_seed(sum(map(ord, variant)))
    theirs = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    for name, parameter in theirs.named_parameters():
        parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    ours = build_model(ModelConfig.from_hf_config(config_json(config)), dtype)
    ours.load_weights(theirs.state_dict().items())
    return Pair(theirs, ours)
