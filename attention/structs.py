"""The structures of csrc/ as ctypes has them, each named as there; native.py has the calls that take them."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

STORAGE = {torch.float32: 0, torch.bfloat16: 1}
PAGE_STORAGE = {**STORAGE, torch.int8: 2}
DENSE, INT8, Q4_0, Q4_1, Q8_0 = range(5)  # linear.h: Weights


def _pointers(*names: str) -> Sequence[tuple[str, type[Any]]]:
    return [(name, ctypes.c_void_p) for name in names]


def _longs(*names: str) -> Sequence[tuple[str, type[Any]]]:
    return [(name, ctypes.c_int64) for name in names]


def _ints(*names: str) -> Sequence[tuple[str, type[Any]]]:
    return [(name, ctypes.c_int32) for name in names]


class Shape(ctypes.Structure):
    """attention.h."""

    _fields_ = _ints("num_heads", "num_kv_heads", "head_dim", "page_size")


class Step(ctypes.Structure):
    """attention.h."""

    _fields_ = [
        *_pointers("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"),
        *_ints("num_requests", "num_threads"),
    ]


class Pages(ctypes.Structure):
    """pages.h."""

    _fields_ = [
        *_pointers("k", "v"),
        *_longs("page_stride", "slot_stride", "kv_head_stride", "scales"),
        *_ints("page_size", "storage"),
    ]


class Layer(ctypes.Structure):
    """attention.h."""

    _fields_ = [
        *_pointers("q", "out"),
        ("pages", Pages),
        *_longs("q_stride", "out_stride"),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        *_ints("window", "storage", "num_threads"),
    ]


class Norm(ctypes.Structure):
    """norm.cpp."""

    _fields_ = [
        *_pointers("x", "residual", "weight", "out"),
        *_longs("x_stride", "residual_stride"),
        *_ints("rows", "cols"),
        ("eps", ctypes.c_float),
        *_ints("storage", "num_threads"),
    ]


class SiluMul(ctypes.Structure):
    """silu.cpp."""

    _fields_ = [
        *_pointers("gate_up", "out"),
        *_longs("stride"),
        *_ints("rows", "cols", "storage", "num_threads"),
    ]


class RotaryStore(ctypes.Structure):
    """rotary.cpp."""

    _fields_ = [
        *_pointers("qkv", "q"),
        ("pages", Pages),
        *_pointers("cos", "sin", "positions", "slots", "norm_weight"),
        *_longs("qkv_stride"),
        *_ints("tokens", "num_heads", "num_kv_heads", "head_dim"),
        ("norm_eps", ctypes.c_float),
        *_ints("storage", "num_threads"),
    ]


class Store(ctypes.Structure):
    """rotary.cpp."""

    _fields_ = [
        *_pointers("k", "v"),
        ("pages", Pages),
        *_pointers("slots"),
        *_longs("k_stride", "v_stride"),
        *_ints("tokens", "num_kv_heads", "head_dim", "storage", "num_threads"),
    ]


class Linear(ctypes.Structure):
    """linear.h."""

    _fields_ = [
        *_pointers("weight", "scale", "sum", "bias"),
        *_ints("in_features", "out_features", "words", "kind", "gated"),
    ]


class LinearJob(ctypes.Structure):
    """linear.h."""

    _fields_ = [("linear", Linear), *_pointers("x", "out"), *_ints("storage", "rows", "num_threads")]


class BlockRows(ctypes.Structure):
    """linear_blocks.h."""

    _fields_ = [("linear", Linear), *_pointers("rows", "out"), *_ints("count", "storage")]


class DecoderLayer(ctypes.Structure):
    """decoder.cpp."""

    _fields_ = [
        *_pointers("attention_norm", "mlp_norm", "head_norm"),
        ("pages", Pages),
        *((name, Linear) for name in ("qkv", "out", "gate_up", "down")),
        *_ints("window"),
    ]


class DecoderModel(ctypes.Structure):
    """decoder.cpp."""

    _fields_ = [
        *_pointers("layers", "norm", "cos", "sin"),
        ("head", Linear),
        ("attention", Layer),
        *_ints("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim"),
        ("norm_eps", ctypes.c_float),
    ]


class DecoderStep(ctypes.Structure):
    """decoder.cpp."""

    _fields_ = [
        *_pointers("attention", "residual", "positions", "slots", "rows", "logits", "seconds"),
        *_ints("tokens", "num_rows", "num_threads"),
    ]
