"""Rotary position embeddings (RoFormer) and the ways checkpoints stretch them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trunkline.runtime.errors import LoadError, UnknownArchitectureError

_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base frequency and scaling of the rotary embedding; the fields mean what they mean in a config.json.

    `kind` is "default", "linear", "llama3" or "yarn"; the fields below `factor` belong to the last two.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @classmethod
    def from_hf_config(cls, hf: Mapping[str, Any]) -> "RopeConfig":
        """Reads `rope_scaling` + `rope_theta`, or transformers 5's `rope_parameters`.

        Raises UnknownArchitectureError for a scaling that is not supported, LoadError where one lacks a
        field.
        """
        given = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
        if any(isinstance(value, Mapping) for value in given.values()):
            raise UnknownArchitectureError(
                f"rope_parameters per layer type are not supported: {sorted(given)}"
            )
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind not in _KINDS:
            raise UnknownArchitectureError(
                f"RoPE scaling {kind!r} is not supported; supported: {', '.join(_KINDS)}"
            )
        partial = given.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1.0
        if partial != 1.0:
            raise UnknownArchitectureError(f"partial_rotary_factor {partial} is not supported; only 1.0 is")
        theta = given.get("rope_theta") or hf.get("rope_theta") or 10000.0
        if kind == "default":
            return cls(theta=float(theta))
        needed = ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",)
        missing = [name for name in needed if given.get(name) is None]
        if missing:
            raise LoadError(f"RoPE scaling {kind!r} lacks {', '.join(missing)}")
        original = hf.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
        return cls(
            theta=float(theta),
            kind=kind,
            factor=float(given["factor"]),
            original_max_positions=int(original or hf["max_position_embeddings"]),
            low_freq_factor=given.get("low_freq_factor") or 1.0,
            high_freq_factor=given.get("high_freq_factor") or 4.0,
            attention_factor=given.get("attention_factor"),
            beta_fast=given.get("beta_fast") or 32.0,
            beta_slow=given.get("beta_slow") or 1.0,
            mscale=given.get("mscale"),
            mscale_all_dim=given.get("mscale_all_dim"),
            truncate=given.get("truncate", True),
        )


class RotaryTable:
    """Cosines and sines of every position, float32 [max_positions, head_dim / 2] each, computed once."""

    def __init__(self, config: RopeConfig, head_dim: int, max_positions: int, device: torch.device) -> None:
        angles = torch.outer(
            torch.arange(max_positions, dtype=torch.float32), inverse_frequencies(config, head_dim)
        )
        scale = attention_factor(config)
        self.cos = angles.cos().mul_(scale).to(device)
        self.sin = angles.sin_().mul_(scale).to(device)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Angle per position of each pair of coordinates, float32 [head_dim / 2]."""
    wavelengths = config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    plain = 1.0 / wavelengths
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "llama3":
        return _llama3(config, plain)
    if config.kind == "yarn":
        return _yarn(config, head_dim, plain, 1.0 / (config.factor * wavelengths))
    return plain


def attention_factor(config: RopeConfig) -> float:
    """What yarn multiplies cosines and sines by, to keep attention as sharp as in training (YaRN, 2023)."""
    if config.kind != "yarn":
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return _mscale(config.factor, config.mscale) / _mscale(config.factor, config.mscale_all_dim)
    return _mscale(config.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(config: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended (Llama 3.1)."""
    turns = config.original_max_positions * plain / (2 * math.pi)
    keep = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    keep = keep.clamp(0, 1)
    return (1 - keep) * plain / config.factor + keep * plain


def _yarn(config: RopeConfig, head_dim: int, plain: torch.Tensor, stretched: torch.Tensor) -> torch.Tensor:
    """As llama3, but blended along a ramp over the coordinate pairs (YaRN, 2023)."""

    def pair_of(turns: float) -> float:
        ratio = config.original_max_positions / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = pair_of(config.beta_fast), pair_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    stretch = ramp.clamp(0, 1)
    return stretched * stretch + plain * (1 - stretch)
