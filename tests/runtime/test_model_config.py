from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.runtime.hf_models import VARIANTS, config_json, hf_config
from trunkline.runtime.errors import LoadError, UnknownArchitectureError
from trunkline.runtime.models import ModelConfig, RopeConfig
from trunkline.runtime.models.rope import attention_factor, inverse_frequencies

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
}


def test_a_transformers_4_config_is_read() -> None:
    assert ModelConfig.from_hf_config(SMOLLM2) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_positions=8192,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=100000.0),
        tied_embeddings=True,
    )


def test_the_attention_config_follows_the_model() -> None:
    config = ModelConfig.from_hf_config(
        SMOLLM2 | {"architectures": ["MistralForCausalLM"], "head_dim": 16, "sliding_window": 32}
    ).attention_config(page_size=8)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 16)
    assert (config.page_size, config.scale, config.window(29)) == (8, 0.25, 32)


@pytest.mark.parametrize(
    ("traits", "windows"),
    [
        ({}, None),
        ({"use_sliding_window": True, "sliding_window": None}, None),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 28}, (None,) * 28 + (5, 5)),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 5,
                "layer_types": ["sliding_attention"] + 29 * ["full_attention"],
            },
            (5,) + (None,) * 29,
        ),
    ],
)
def test_qwen_windows_belong_to_some_layers(traits: dict[str, Any], windows: object) -> None:
    config = ModelConfig.from_hf_config(SMOLLM2 | {"architectures": ["Qwen2ForCausalLM"]} | traits)
    assert config.sliding_window == windows


def test_model_type_stands_in_for_a_missing_architecture() -> None:
    config = ModelConfig.from_hf_config(SMOLLM2 | {"architectures": None, "model_type": "qwen3"})
    assert (config.architecture, config.head_dim, config.qk_norm) == ("Qwen3ForCausalLM", 128, True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_spellings_of_rope_settings_mean_the_same(variant: str) -> None:
    new = config_json(hf_config(variant))
    scaling = dict(new.pop("rope_parameters"))
    old = {**new, "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    scaling["type"] = scaling.pop("rope_type")
    assert RopeConfig.from_hf_config(old) == RopeConfig.from_hf_config(config_json(hf_config(variant)))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 0.5,
            "high_freq_factor": 8.0,
            "rope_theta": 5e5,
        },
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 128},
        {"rope_type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0, "beta_slow": 2},
        {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25, "beta_fast": 64, "truncate": False},
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 150.0, "original_max_position_embeddings": 24},
    ],
    ids=lambda scaling: "-".join(map(str, scaling.values())),
)
def test_scaled_frequencies_equal_transformers(scaling: dict[str, Any]) -> None:
    theirs = hf_config("llama-head-dim")
    theirs.head_dim, theirs.rope_parameters = 128, {"rope_theta": 10000.0, **scaling}
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, torch.device("cpu"))

    ours = RopeConfig.from_hf_config({"rope_parameters": scaling, "max_position_embeddings": 256})

    torch.testing.assert_close(inverse_frequencies(ours, 128), frequencies, rtol=3e-7, atol=0)
    assert attention_factor(ours) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "architecture MambaForCausalLM is not supported; supported: LlamaForCausalLM, "
            "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
        ),
        ({"architectures": [], "model_type": "mamba"}, "architecture of model_type 'mamba' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization gptq of safetensors is not supported",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "RoPE scaling 'dynamic' is not supported"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "per layer type are not supported",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    ],
)
def test_what_nothing_here_runs_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=message) as error:
        ModelConfig.from_hf_config(SMOLLM2 | change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "the model's config has no hidden_size"),
        ({"vocab_size": "many"}, "vocab_size 'many'; a positive integer is needed"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0; a positive integer is needed"),
        ({"num_key_value_heads": 2}, "9 heads are no multiple of 2 KV heads"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8}},
            "'llama3' lacks low_freq_factor, high_freq_factor",
        ),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "layer_types": ["full_attention"],
            },
            "1 layer_types for 30 layers",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        ModelConfig.from_hf_config(SMOLLM2 | change)
