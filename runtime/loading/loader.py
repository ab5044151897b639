"""Loading a model: from what the user named to weights in memory and a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from trunkline.attention import native
from trunkline.errors import ConfigError, TrunklineError
from trunkline.runtime.errors import LoadError
from trunkline.runtime.models import CausalLM, ModelConfig, Weight, build_model, check_quantization

from . import checkpoint, gguf_config, gguf_weights
from .files import naming, parsing
from .gguf_file import GGUFFile
from .source import ModelSource, resolve
from .tokenizer import Tokenizer
from .tokenizer_loader import folder_tokenizer, gguf_tokenizer_of

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NATIVE_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # "bf16" is Arm's name


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to run.

    `name` is what to call it in answers; `generation_defaults` are the sampling settings its makers recommend
    (`temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`; only those they state).
    """

    model: CausalLM
    config: ModelConfig
    tokenizer: Tokenizer
    name: str
    eos_token_ids: frozenset[int]
    generation_defaults: Mapping[str, Any]


def load_model(
    source: str | Path | None = None,
    dtype: str = "auto",
    device: str | torch.device = "auto",
    quantization: str | None = None,
) -> LoadedModel:
    """Load a model folder, a .gguf file, a hub id, or (None) the embedded SmolLM2-135M-Instruct.

    `dtype` is "auto", "float32", "bfloat16" or "float16". Auto is the checkpoint's own on a GPU; on a
    CPU it is bfloat16 where the native kernels are or the processor computes with it, else float32. `device`
    "auto" is the GPU if there is one. `quantization` is None, "int8" or "gguf" (see `build_model`). Raises
    ConfigError for an impossible dtype, device or quantization, LoadError (one line, naming the file) for the rest.
    """
    target = _device(device)
    if dtype != "auto" and dtype not in _DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not one of auto, {', '.join(_DTYPES)}")
    check_quantization(quantization, target)
    found = resolve(source)
    if quantization == "gguf" and not found.is_gguf:
        raise ConfigError(
            f"quantization 'gguf' computes with a .gguf file's own blocks; {found.path} is none"
        )
    opened = _open_gguf(found, quantization == "gguf") if found.is_gguf else _open_folder(found)
    with parsing(found.path):
        config = ModelConfig.from_hf_config(opened.hf_config)
    with naming(found.path):
        wanted = _auto_dtype(opened.hf_config, target) if dtype == "auto" else _DTYPES[dtype]
        with _enough_memory(wanted):
            model = build_model(config, wanted, target, quantization)
            model.load_weights(opened.weights)
    return LoadedModel(
        model=model,
        config=config,
        tokenizer=opened.tokenizer,
        name=found.name,
        eos_token_ids=opened.tokenizer.eos_token_ids,
        generation_defaults=opened.generation_defaults,
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """What both kinds of file yield; `weights` reads as it is iterated."""

    hf_config: Mapping[str, Any]
    tokenizer: Tokenizer
    weights: Iterable[tuple[str, Weight]]
    generation_defaults: Mapping[str, Any]


def _open_gguf(found: ModelSource, as_blocks: bool) -> _Opened:
    file = GGUFFile(found.path)
    hf_config = gguf_config.hf_config(file)
    tokenizer = gguf_tokenizer_of(file)
    read = gguf_weights.block_weights if as_blocks else gguf_weights.weights
    return _Opened(hf_config, tokenizer, read(file, hf_config), gguf_config.generation_defaults(file))


def _open_folder(found: ModelSource) -> _Opened:
    hf_config = checkpoint.read_config(found.path)
    weights = checkpoint.weights(found.path)
    tokenizer = folder_tokenizer(found.path)
    return _Opened(hf_config, tokenizer, weights, checkpoint.generation_defaults(found.path))


@contextmanager
def _enough_memory(dtype: torch.dtype) -> Iterator[None]:
    try:
        yield
    except TrunklineError:
        raise
    except RuntimeError as error:  # torch's ways of being out of memory
        reason = " ".join(str(error).split())
        raise LoadError(f"there is no memory for the weights as {dtype}: {reason}") from error


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device {device!r} is not known to torch") from None
    if wanted.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {str(device)!r} is not supported (cpu and cuda are)")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {str(device)!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices"
        )
    return wanted


def _auto_dtype(hf_config: Mapping[str, Any], device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        fast = native.supports(torch.bfloat16) or _cpu_has_bfloat16()
        return torch.bfloat16 if fast else torch.float32
    stated = hf_config.get("dtype") or hf_config.get("torch_dtype")
    return _DTYPES.get(str(stated), torch.bfloat16)


@lru_cache(maxsize=1)
def _cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16; without that and the native kernels, float32 is the faster one."""
    try:
        description = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return not _NATIVE_BF16_FLAGS.isdisjoint(description.split())
