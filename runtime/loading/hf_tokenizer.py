"""From a Hugging Face model folder to a tokenizer.

`tokenizer.json` is read directly: it is complete, and importing transformers takes seconds. Only a
folder without one (SentencePiece or vocabulary files alone) goes through transformers' converters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trunkline.runtime.errors import TokenizerError

from .files import read_json, read_json_if_there, read_text
from .tokenizer_spec import TokenizerSpec, added_token

_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


def tokenizer_spec(folder: Path) -> TokenizerSpec:
    """Read `tokenizer.json` with what `tokenizer_config.json` and its companions say about it.

    Raises TokenizerError for a folder without a usable tokenizer, LoadError for a file that can't be read.
    """
    definition = _definition(folder)
    settings = read_json_if_there(folder / "special_tokens_map.json")
    settings |= read_json_if_there(folder / "tokenizer_config.json")
    named = {role: _content(settings.get(role)) for role in _NAMED}
    added = _added_tokens(definition, settings, named)
    ids = {token["content"]: token["id"] for token in added}
    eos_ids = _configured_eos_ids(folder)
    if named["eos_token"] is not None:
        eos_ids |= {ids[named["eos_token"]]}
    default_bos = _bos_of_post_processor(definition.get("post_processor"))
    add_bos = settings.get("add_bos_token")
    return TokenizerSpec(
        definition={**definition, "added_tokens": added},
        control=frozenset(token["content"] for token in added if token["special"]),
        eos_ids=frozenset(eos_ids),
        bos=named["bos_token"] or default_bos,
        eos=named["eos_token"],
        pad=named["pad_token"],
        unk=named["unk_token"],
        add_bos=default_bos is not None if add_bos is None else bool(add_bos),
        chat_templates=_chat_templates(folder, settings),
    )


def _definition(folder: Path) -> Mapping[str, Any]:
    path = folder / "tokenizer.json"
    if path.is_file():
        definition = read_json(path)
        vocabulary = (
            definition.get("model", {}).get("vocab") if isinstance(definition.get("model"), dict) else None
        )
        if not vocabulary:
            raise TokenizerError(f"{path}: holds no vocabulary")
        return definition
    return _converted(folder)


def _converted(folder: Path) -> Mapping[str, Any]:
    """What transformers makes of a folder that has only a SentencePiece model or vocabulary files."""
    if not any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "tekken.json")):
        raise TokenizerError(f"{folder}: there is no tokenizer (tokenizer.json or tokenizer.model)")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        definition: Mapping[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # converters fail in as many ways as there are file formats
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise TokenizerError(f"{folder}: the tokenizer can't be converted: {reason[0]}") from None
    return definition


def _content(token: Any) -> str | None:
    """A token as the settings write it: a string, or a mapping with its `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _added_tokens(
    definition: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """The definition's added tokens, with those the settings add or declare special."""
    added = {token["content"]: dict(token) for token in definition.get("added_tokens") or []}
    for id, token in (settings.get("added_tokens_decoder") or {}).items():
        entry = added.setdefault(token["content"], added_token(int(id), token["content"], special=False))
        entry["special"] = bool(entry["special"] or token.get("special", False))
    vocabulary = definition["model"]["vocab"]
    if not isinstance(vocabulary, Mapping):
        vocabulary = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    special = [named[role] for role in _NAMED]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        given = settings.get(key) or []
        special += map(_content, given.values() if isinstance(given, dict) else given)
    for content in special:
        if content is None:
            continue
        if content not in added and content not in vocabulary:
            raise TokenizerError(f"special token {content!r} is not in the vocabulary")
        entry = added.setdefault(content, added_token(vocabulary.get(content, 0), content, special=True))
        entry["special"] = True
    # New ids are given out in this order, so it has to be theirs.
    return sorted(added.values(), key=lambda token: int(token["id"]))


def _configured_eos_ids(folder: Path) -> set[int]:
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        value = read_json_if_there(folder / name).get("eos_token_id")
        ids.update(id for id in (value if isinstance(value, list) else [value]) if isinstance(id, int))
    return ids


def _bos_of_post_processor(processor: Mapping[str, Any] | None) -> str | None:
    """The token that the definition itself puts before a text."""
    if processor is None:
        return None
    for part in processor.get("processors", [processor]):
        first = (part.get("single") or [{}])[0]
        if "SpecialToken" in first:
            return str(first["SpecialToken"]["id"])
    return None


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """By name; a file of its own goes before the settings' entry, as in transformers."""
    given = settings.get("chat_template") or {}
    if isinstance(given, str):
        given = {"default": given}
    elif isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given}
    templates = dict(given)
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates["default"] = read_text(path)
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[extra.stem] = read_text(extra)
    return templates
