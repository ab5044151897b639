"""What an engine tells about itself."""

from __future__ import annotations

import msgspec

__all__ = ["EngineInfo", "EngineStats"]


class EngineInfo(msgspec.Struct, frozen=True):
    """What does not change while the engine lives."""

    model_name: str
    max_model_len: int
    vocab_size: int
    page_size: int
    num_pages: int
    dtype: str
    backend: str


class EngineStats(msgspec.Struct, frozen=True):
    """The engine at one moment; the counters only grow."""

    num_running: int = 0
    num_waiting: int = 0
    num_pages_free: int = 0
    num_pages_evictable: int = 0
    num_pages_in_use: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_computed_tokens: int = 0
    num_evicted_pages: int = 0
    num_preemptions: int = 0
