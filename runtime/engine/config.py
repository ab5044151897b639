"""Everything an engine can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from trunkline.errors import ConfigError
from trunkline.radix import RadixConfig
from trunkline.runtime.models import QUANTIZATIONS
from trunkline.scheduler import SchedulerConfig

__all__ = ["EngineConfig"]

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "int8")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of an `Engine`; those of each room come in the room's own config.

    model: a directory, a .gguf file or a hub id; None is the embedded SmolLM2-135M-Instruct.
    dtype: of weights, and of KV pages but for `kv_cache_dtype`: auto, float32, bfloat16 or float16.
    kv_cache_dtype: auto is `dtype`; int8: keys and values in a byte a number, with the cpu attention backend.
    quantization: None; int8: weights of the linear layers, and what they are multiplied with; gguf: the blocks of a
        .gguf file as they are; on CPUs.
    device: auto, cpu, cuda or cuda:N.
    attention_backend: auto, or a backend by name.
    max_model_len: tokens a request may have, prompt and output together; None is the model's own limit.
    kv_cache_tokens: size of the page pool; None takes `kv_cache_fraction` of the memory that is free.
    overlap: the next step is planned and launched while one runs; None does so on a CUDA device only.
    seed: where requests without a seed of their own draw theirs from; None draws it from the system.

    Raises ConfigError when a value is out of range.
    """

    model: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    device: str = "auto"
    attention_backend: str = "auto"
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"
    kv_cache_tokens: int | None = None
    kv_cache_fraction: float = 0.25
    overlap: bool | None = None
    seed: int | None = None
    radix: RadixConfig = field(default_factory=RadixConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is none of {', '.join(KV_CACHE_DTYPES)}"
            )
        if self.quantization not in (None, *QUANTIZATIONS):
            raise ConfigError(f"quantization {self.quantization!r} is none of {', '.join(QUANTIZATIONS)}")
        for name in ("max_model_len", "kv_cache_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value} is below 1")
        if not 0.0 < self.kv_cache_fraction <= 0.95:
            raise ConfigError(f"kv_cache_fraction {self.kv_cache_fraction} is not in (0, 0.95]")
        page = self.radix.page_size
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < page:
            raise ConfigError(f"kv_cache_tokens {self.kv_cache_tokens} holds no page of {page} tokens")
