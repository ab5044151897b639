"""The models: one decoder over shared layers, told apart by its config."""

from .block_weights import BLOCK_KINDS, BlockWeight, Weight, dense
from .config import ModelConfig, supported_architectures
from .decoder import CausalLM, build_model
from .linear import QUANTIZATIONS, check_quantization
from .rope import RopeConfig

__all__ = [
    "BLOCK_KINDS",
    "QUANTIZATIONS",
    "BlockWeight",
    "CausalLM",
    "ModelConfig",
    "RopeConfig",
    "Weight",
    "build_model",
    "check_quantization",
    "dense",
    "supported_architectures",
]
