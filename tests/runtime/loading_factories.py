"""Tiny models on disk: GGUF files and Hugging Face folders, with a byte-level vocabulary of their own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from safetensors.numpy import save_file

Array = npt.NDArray[Any]
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 256, 4, 2, 64
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet() -> list[str]:
    """The 256 one-byte entries of a byte-level vocabulary, in the order of their bytes."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)]


MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3", "< |", "Ċ Ċ"]
TOKENS = [*CONTROL, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """A complete GGUF header; `changes` are keys with "__" for "." (None drops one)."""
    values: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": 256,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def hf_weights(architecture: str = "llama", *, tied: bool = True, seed: int = 0) -> dict[str, Array]:
    """Random float32 weights of the tiny model under their Hugging Face names."""
    rng = np.random.default_rng(seed)
    kv = KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "self_attn.k_proj.weight": (kv, HIDDEN),
        "self_attn.v_proj.weight": (kv, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (256, HIDDEN),
        "mlp.up_proj.weight": (256, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, 256),
    }
    if architecture == "qwen2":
        layer |= {"self_attn.q_proj.bias": (HIDDEN,), "self_attn.k_proj.bias": (kv,)}
        layer |= {"self_attn.v_proj.bias": (kv,)}
    if architecture == "qwen3":
        layer |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
    shapes = {"model.embed_tokens.weight": (len(TOKENS), HIDDEN), "model.norm.weight": (HIDDEN,)}
    shapes |= {f"model.layers.0.{name}": shape for name, shape in layer.items()}
    if not tied:
        shapes["lm_head.weight"] = (len(TOKENS), HIDDEN)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(hf_name: str) -> str:
    """What llama.cpp calls a weight of the tiny, one-layer model."""
    layer, plain = "model.layers.0.", hf_name.removeprefix("model.layers.0.")
    stem, _, kind = plain.rpartition(".")
    return f"{'blk.0.' if hf_name.startswith(layer) else ''}{_GGUF_NAMES[stem]}.{kind}"


def interleaved(rows: Array, num_heads: int) -> Array:
    """Q or K rows in the order llama.cpp's converter writes for the llama architecture."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def as_llama_cpp(weights: Mapping[str, Array], architecture: str = "llama") -> dict[str, Array]:
    """The weights as llama.cpp's converter stores them: its names and its row order."""
    heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}
    stored = {}
    for name, values in weights.items():
        part = name.removeprefix("model.layers.0.").rpartition(".")[0]
        permuted = architecture == "llama" and part in heads
        stored[gguf_name(name)] = interleaved(values, heads[part]) if permuted else values
    return stored


def write_gguf(
    path: Path,
    values: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """A GGUF file: matrices as `kind`, vectors as F32, uint8 arrays as the blocks of `kind` they are."""
    writer = gguf.GGUFWriter(path, "ignored")
    writer.kv_data[0].clear()
    for key, value in (metadata() if values is None else values).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case str():
                writer.add_string(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case _:
                writer.add_array(key, value)
    for name, data in (as_llama_cpp(hf_weights()) if tensors is None else tensors).items():
        if data.dtype == np.uint8:
            writer.add_tensor(name, data, raw_dtype=kind)
        elif data.ndim > 1:
            writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hf_config(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """The tiny model's config.json."""
    return {
        "model_type": architecture,
        "architectures": [f"{architecture.capitalize()}ForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": len(TOKENS),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 2,
        **changes,
    }


def tokenizer_json() -> dict[str, Any]:
    """The tiny vocabulary in the form of a tokenizer.json, digits one by one."""
    added = [{"id": id, "content": name, "special": True} for id, name in enumerate(CONTROL)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "added_tokens": [token | flags for token in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(TOKENS)},
            "merges": MERGES,
        },
    }


def write_folder(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    weights: Mapping[str, Array] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
    num_shards: int = 1,
) -> Path:
    """A Hugging Face model folder of the tiny model, in `num_shards` weight files."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", hf_config() if config is None else config)
    write_json(folder / "tokenizer.json", tokenizer_json())
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
    write_json(folder / "tokenizer_config.json", settings if tokenizer_config is None else tokenizer_config)
    arrays = dict(hf_weights() if weights is None else weights)
    if num_shards == 1:
        save_file(arrays, folder / "model.safetensors")
        return folder
    names = sorted(arrays)
    files = {
        name: f"model-{n % num_shards + 1:05}-of-{num_shards:05}.safetensors" for n, name in enumerate(names)
    }
    for file in sorted(set(files.values())):
        save_file({name: arrays[name] for name in names if files[name] == file}, folder / file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": files})
    return folder


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON in `path`."""
    path.write_text(json.dumps(value), encoding="utf-8")
