"""The models: one decoder over shared layers, told apart by its config."""

from .config import ModelConfig, supported_architectures
from .decoder import CausalLM, build_model
from .rope import RopeConfig

__all__ = ["CausalLM", "ModelConfig", "RopeConfig", "build_model", "supported_architectures"]
