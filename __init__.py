"""Trunkline: a prefix-caching LLM runtime.

The names below are imported on first use, so that `import trunkline.radix` costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trunkline.errors import ConfigError, TrunklineError
    from trunkline.frontend.analyze import analyze
    from trunkline.frontend.lang import (
        OpenAIBackend,
        TrunklineServer,
        assistant,
        backend,
        function,
        gen,
        image,
        select,
        set_default_backend,
        system,
        user,
    )
    from trunkline.runtime.engine import Engine, EngineConfig
    from trunkline.runtime.sampling import SamplingParams

__version__ = "0.1.0"

_FACE = {
    "ConfigError": "trunkline.errors",
    "Engine": "trunkline.runtime.engine",
    "EngineConfig": "trunkline.runtime.engine",
    "SamplingParams": "trunkline.runtime.sampling",
    "TrunklineError": "trunkline.errors",
    "analyze": "trunkline.frontend.analyze",
    "OpenAIBackend": "trunkline.frontend.lang",
    "TrunklineServer": "trunkline.frontend.lang",
    "assistant": "trunkline.frontend.lang",
    "backend": "trunkline.frontend.lang",
    "function": "trunkline.frontend.lang",
    "gen": "trunkline.frontend.lang",
    "image": "trunkline.frontend.lang",
    "select": "trunkline.frontend.lang",
    "set_default_backend": "trunkline.frontend.lang",
    "system": "trunkline.frontend.lang",
    "user": "trunkline.frontend.lang",
}

__all__ = [
    "ConfigError",
    "Engine",
    "EngineConfig",
    "OpenAIBackend",
    "SamplingParams",
    "TrunklineError",
    "TrunklineServer",
    "__version__",
    "analyze",
    "assistant",
    "backend",
    "function",
    "gen",
    "image",
    "select",
    "set_default_backend",
    "system",
    "user",
]


def __getattr__(name: str) -> Any:
    try:
        module = _FACE[name]
    except KeyError:
        raise AttributeError(f"module 'trunkline' has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
