"""The attention backend for CUDA GPUs; FlashInfer itself is imported when a backend is made."""

from .backend import FlashInferBackend
from .cascade import CascadeRule
from .library import unavailable

__all__ = ["CascadeRule", "FlashInferBackend", "unavailable"]
