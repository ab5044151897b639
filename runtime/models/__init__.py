"""The models: one decoder over shared layers, told apart by its config."""

from .config import ModelConfig, supported_architectures
from .decoder import CausalLM, build_model
from .linear import QUANTIZATIONS, check_quantization
from .rope import RopeConfig

__all__ = [
    "QUANTIZATIONS",
    "CausalLM",
    "ModelConfig",
    "RopeConfig",
    "build_model",
    "check_quantization",
    "supported_architectures",
]
