"""FlashInfer itself: whether it can serve here, and the functions of it that we call. Imported only when chosen."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from trunkline.attention.config import AttentionConfig
from trunkline.errors import ConfigError

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)
# The CUDA-core decode kernel is compiled for these; the tensor-core one takes any.
CUDA_CORE_GROUPS = (1, 2, 3, 4, 8)
TENSOR_CORES_FROM_GROUP = 4
PACKAGE = "flashinfer"


def unavailable(config: AttentionConfig, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the backend cannot serve these shapes here, in one line; None where it can. Imports nothing."""
    if device.type != "cuda":
        return f"the flashinfer backend needs a CUDA GPU; the KV pool is on {device}"
    if (reason := unsupported(config, dtype)) is not None:
        return reason
    if find_spec(PACKAGE) is None:
        return "the flashinfer backend needs flashinfer-python: pip install trunkline[cuda]"
    return None


def unsupported(config: AttentionConfig, dtype: torch.dtype) -> str | None:
    """What about a model the kernels are not made for, or None."""
    if dtype not in DTYPES:
        return f"the flashinfer backend has no kernels for {dtype} keys; it takes bfloat16 or float16"
    if config.head_dim not in HEAD_DIMS:
        sizes = ", ".join(map(str, HEAD_DIMS))
        return f"head_dim is {config.head_dim}; the flashinfer backend takes {sizes} (the torch backend any)"
    return None


def use_tensor_cores(group_size: int) -> bool:
    """Whether decode runs on tensor cores: where several query heads fill their tiles, or no other kernel exists."""
    return group_size >= TENSOR_CORES_FROM_GROUP or group_size not in CUDA_CORE_GROUPS


def load(config: AttentionConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """The package; raises ConfigError with `unavailable`'s line."""
    if (reason := unavailable(config, dtype, device)) is not None:
        raise ConfigError(f"attention: {reason}")
    return import_module(PACKAGE)
