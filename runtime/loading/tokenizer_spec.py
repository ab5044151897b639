"""What a tokenizer is made from, whichever kind of file it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything a `Tokenizer` needs.

    `definition` has the form of a `tokenizer.json`; every control token is among its `added_tokens`, and
    `control` names them. `eos_ids` are all ids that end a generation. `chat_templates` are Jinja sources by
    name ("default", "tool_use"), empty for a model without.
    """

    definition: Mapping[str, Any]
    control: frozenset[str]
    eos_ids: frozenset[int]
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    unk: str | None = None
    add_bos: bool = False
    chat_templates: Mapping[str, str] | None = None


def added_token(id: int, content: str, *, special: bool) -> dict[str, Any]:
    """An entry of `added_tokens` that is matched as it is written."""
    return {
        "id": id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
