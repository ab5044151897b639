"""From a GGUF file's tensors to Hugging Face names, row order and floating-point values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from trunkline.runtime.errors import LoadError, UnknownArchitectureError
from trunkline.runtime.models import BLOCK_KINDS, BlockWeight, Weight, dense

from .gguf_file import GGUFFile, GGUFTensor

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROTATED = re.compile(r"\.([qk])_proj\.(weight|bias)$")
_ROTATED_HEADS = {"q": "num_attention_heads", "k": "num_key_value_heads"}
# Not weights: the configuration holds what it says (see gguf_config).
_FOLDED = frozenset({"rope_freqs.weight"})


def weights(file: GGUFFile, config: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight as (Hugging Face name, tensor), one at a time; quantised ones come as float32.

    Raises what `block_weights` raises.
    """
    return ((name, dense(weight)) for name, weight in block_weights(file, config))


def block_weights(file: GGUFFile, config: Mapping[str, Any]) -> Iterator[tuple[str, Weight]]:
    """The same, but matrices in blocks that can be computed with come as they are.

    Raises UnknownArchitectureError for a tensor that belongs to no known layer, LoadError for a quantisation
    that can't be undone.
    """
    for tensor in file.tensors.values():
        if tensor.name in _FOLDED:
            continue
        name = hf_name(file, tensor.name)
        weight = _read(file, tensor)
        if file.architecture == "llama" and (match := _ROTATED.search(name)):
            num_heads = config[_ROTATED_HEADS[match[1]]]
            if weight.shape[0] % (2 * num_heads):
                raise LoadError(
                    f"{file.path}: {tensor.name!r} has {weight.shape[0]} rows, no whole {num_heads} heads"
                )
            weight = _unpermuted(weight, num_heads)
        yield name, weight


def hf_name(file: GGUFFile, name: str) -> str:
    """The Hugging Face name of a GGUF tensor: blk.3.ffn_up.weight is model.layers.3.mlp.up_proj.weight."""
    if name in _TOP:
        return _TOP[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _IN_LAYER:
        raise UnknownArchitectureError(
            f"{file.path}: tensor {name!r} belongs to no layer of {file.architecture!r}"
        )
    return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"


def _read(file: GGUFFile, tensor: GGUFTensor) -> Weight:
    if tensor.kind.name in BLOCK_KINDS and len(tensor.shape) == 2:
        data = torch.from_numpy(file.raw(tensor).copy())
        return BlockWeight(tensor.kind.name, data.view(tensor.shape[0], -1))
    return _dequantised(file, tensor)


def _dequantised(file: GGUFFile, tensor: GGUFTensor) -> torch.Tensor:
    """The tensor's values: as stored for F32, F16 and BF16, float32 for everything quantised."""
    raw = file.raw(tensor)
    match tensor.kind:
        case GGMLQuantizationType.F32:
            values = torch.from_numpy(raw.view(np.float32).copy())
        case GGMLQuantizationType.F16:
            values = torch.from_numpy(raw.view(np.float16).copy())
        case GGMLQuantizationType.BF16:
            values = torch.from_numpy(raw.view(np.int16).copy()).view(torch.bfloat16)
        case _:
            try:
                values = torch.from_numpy(dequantize(raw.reshape(_num_rows(tensor), -1), tensor.kind))
            except NotImplementedError:
                raise LoadError(
                    f"{file.path}: tensor {tensor.name!r} is {tensor.kind.name}, which can't be dequantised"
                ) from None
    return values.reshape(tensor.shape)


def _num_rows(tensor: GGUFTensor) -> int:
    """Rows to dequantise as: several stored rows at once take half the time, and blocks don't mind."""
    stored = math.prod(tensor.shape[:-1])
    return stored // math.gcd(stored, 16)


def _unpermuted(weight: Weight, num_heads: int) -> Weight:
    """Undo llama.cpp's row order of Q and K: it pairs the two rotated halves of a head row by row.

    Stored: head, pair, half. Hugging Face: head, half, pair. Only files of the llama architecture are
    stored so.
    """
    if isinstance(weight, BlockWeight):  # a row's blocks are its own
        return BlockWeight(weight.kind, _unpermuted_rows(weight.data, num_heads))
    return _unpermuted_rows(weight, num_heads)


def _unpermuted_rows(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
