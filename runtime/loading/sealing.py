"""Control tokens that no text can spell.

A tokenizer turns the *text* `<|im_end|>` into the control token of that name, wherever the text came
from. Here every control token is renamed, in the tokenizer itself, to a random string made when the
tokenizer is loaded: its *seal*. Whoever may write control tokens (the chat template's own literals, a
caller who asks for it) writes seals; in all other text `<|im_end|>` is ten ordinary characters, however
it is cut, joined, trimmed or replaced on its way.

    template literal  <|im_start|>  ── sealed when the template is compiled ──▶  <5f3a…:1>  ──▶  id 1
    user text         <|im_start|>  ────────────────────────────────────────────────▶  ids of "<", "|", …

Text is still encoded in one piece, so merges across the border of template and content are what they
always were.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from trunkline.runtime.errors import TokenizerError


class Seals:
    """The seals of one tokenizer's control tokens: text with names ↔ text with seals."""

    def __init__(self, names: Iterable[str]) -> None:
        nonce = secrets.token_hex(8)
        self.of_name = {name: f"<{nonce}:{number}>" for number, name in enumerate(dict.fromkeys(names))}
        self._names = {seal: name for name, seal in self.of_name.items()}
        # Longest first, so that of two control tokens that begin alike the longer one is meant.
        ordered = sorted(self.of_name, key=len, reverse=True)
        self._name_pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self._seal_pattern = re.compile(f"<{nonce}:[0-9]+>")

    def seal(self, text: str) -> str:
        """`text` with the name of every control token replaced by its seal."""
        return self._name_pattern.sub(lambda match: self.of_name[match[0]], text)

    def unseal(self, text: str) -> str:
        """`text` with every seal replaced by the name of its control token."""
        return self._seal_pattern.sub(lambda match: self._names[match[0]], text)

    def names_in(self, text: str) -> set[str]:
        """The names of control tokens that occur, unsealed, in `text`."""
        return {match[0] for match in self._name_pattern.finditer(text)}


def sealed_backend(definition: Mapping[str, Any], seals: Seals) -> Backend:
    """Build a tokenizer from a `tokenizer.json` mapping, with its control tokens renamed to their seals.

    It adds no BOS or EOS, cuts and pads nothing. Raises TokenizerError for a definition that can't be built.
    """
    model = dict(definition["model"])
    of_name = seals.of_name
    if isinstance(model["vocab"], Mapping):
        model["vocab"] = {of_name.get(token, token): id for token, id in model["vocab"].items()}
    else:
        model["vocab"] = [[of_name.get(token, token), score] for token, score in model["vocab"]]
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if _joined(merge) not in of_name]
    if model.get("unk_token") in of_name:
        model["unk_token"] = of_name[model["unk_token"]]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _sealed_added_tokens(definition.get("added_tokens") or [], seals),
        "normalizer": definition.get("normalizer"),
        "pre_tokenizer": definition.get("pre_tokenizer"),
        "post_processor": None,
        "decoder": definition.get("decoder"),
        "model": model,
    }
    try:
        backend = Backend.from_str(json.dumps(document))
    except Exception as error:  # the bindings raise plain Exception
        raise TokenizerError(f"the tokenizer can't be built: {error}") from None
    for token in definition.get("added_tokens") or []:
        name = token["content"]
        if backend.token_to_id(of_name.get(name, name)) != token["id"]:
            raise TokenizerError(f"token {name!r} can't have the id {token['id']} the tokenizer states")
    return backend


def _joined(merge: Any) -> str:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    return "".join(parts)


def _sealed_added_tokens(tokens: Iterable[Mapping[str, Any]], seals: Seals) -> list[dict[str, Any]]:
    sealed = []
    for token in tokens:
        if token["content"] in seals.of_name:
            sealed.append({**token, "content": seals.of_name[token["content"]], "special": True})
        else:
            sealed.append({**token, "special": False})
    return sealed
