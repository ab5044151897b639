"""What is known of the things the model said, and the steps a state has before it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from .content import Content
from .errors import Position
from .parts import Gen, RoleName, Select

__all__ = ["Branch", "Close", "Entry", "Meta", "Open", "Snapshot", "Step"]


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of a `gen` or `select`.

    `num_cached_tokens` of the `num_prompt_tokens` came from the cache; a select, or a `gen` of several answers,
    counts the prompt of each. `logprobs` is there where `gen` asked, `scores` (by choice, higher is better) with
    a select.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    finish_reason: str | None = None
    logprobs: tuple[Any, ...] | None = None
    scores: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing the model said: its variable, if any, its value, what is known of it, and the program's line."""

    name: str | None
    value: Any
    meta: Meta
    position: Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as a fork finds it."""

    content: Content
    variables: dict[str, Any]
    meta: dict[str, Meta]


@dataclass(frozen=True, slots=True)
class Open:
    """Begins a message."""

    role: RoleName


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a message."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Hands a copy of the state as it is here to a fork."""

    origin: asyncio.Future[Snapshot]


Step = str | Gen | Select | Open | Close | Branch
