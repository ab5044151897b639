"""A tiny random model on disk behind the embedded model's tokenizer and chat template."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.runtime.engines import random_weights
from trunkline.runtime.loading.gguf_file import GGUFFile
from trunkline.runtime.loading.gguf_tokenizer import tokenizer_spec
from trunkline.runtime.loading.source import resolve
from trunkline.runtime.models import ModelConfig, build_model

MAX_POSITIONS = 2048
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 48, 96, 2, 4, 2


def write_tiny_folder(folder: Path) -> Path:
    """Writes the model: two layers, float32, a context of 2,048 tokens; answers are random words, always the same."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = tokenizer_spec(GGUFFile(resolve(None).path))
    vocab_size = max(spec.definition["model"]["vocab"].values()) + 1
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": sorted(spec.eos_ids),
    }
    tokenizer = {
        "bos_token": spec.bos,
        "eos_token": spec.eos,
        "chat_template": (spec.chat_templates or {})["default"],
    }
    for name, value in {
        "config.json": config,
        "tokenizer.json": {"version": "1.0", **spec.definition},
        "tokenizer_config.json": {**tokenizer, "add_bos_token": False},
    }.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    model = build_model(ModelConfig.from_hf_config(config), torch.float32)
    save_file(dict(random_weights(model)), folder / "model.safetensors")
    return folder
