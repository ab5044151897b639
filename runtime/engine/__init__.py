"""The engine: requests in, text out. `async_engine` needs the extra `server` and is imported by name."""

from .config import EngineConfig
from .engine import Engine
from .outputs import Choice, Generation, RequestOutput
from .stats import EngineInfo, EngineStats

__all__ = [
    "Choice",
    "Engine",
    "EngineConfig",
    "EngineInfo",
    "EngineStats",
    "Generation",
    "RequestOutput",
]
