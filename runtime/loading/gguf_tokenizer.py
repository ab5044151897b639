"""From a GGUF file's metadata to a tokenizer: byte-level BPE ("gpt2") and SentencePiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from trunkline.runtime.errors import TokenizerError

from .gguf_file import GGUFFile
from .tokenizer_spec import TokenizerSpec, added_token

_Json = dict[str, Any]


class _TokenType(IntEnum):
    """llama.cpp's kinds of vocabulary entries that matter here; the others are ordinary."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


# Names of tokens that end a chat turn; llama.cpp looks for them too when a file doesn't say which one does.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")

_WORDS_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_QWEN2 = _WORDS_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> _Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> _Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_DIGITS_ONE_BY_ONE: _Json = {"type": "Digits", "individual_digits": True}
_PRE_TOKENIZERS: Mapping[str, Sequence[_Json]] = {
    "gpt-2": [_byte_level(use_regex=True)],
    "smollm": [_DIGITS_ONE_BY_ONE, _byte_level(use_regex=True)],
    "llama-bpe": [_split(_WORDS_LLAMA3), _byte_level(use_regex=False)],
    "qwen2": [_split(_WORDS_QWEN2), _byte_level(use_regex=False)],
    "tekken": [_split(_WORDS_TEKKEN), _byte_level(use_regex=False)],
    # What llama.cpp does to files that are older than the `tokenizer.ggml.pre` key.
    "default": [
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(_WORDS_GPT2),
        _split(r"\p{N}+"),
        _split(r"[0-9][0-9][0-9]"),
        _byte_level(use_regex=False),
    ],
}
_ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "tekken"})


def tokenizer_spec(file: GGUFFile) -> TokenizerSpec:
    """Read the tokenizer out of the metadata.

    Raises TokenizerError, naming the file, for a missing or contradictory vocabulary and for a tokenizer
    model or pre-tokenizer that isn't known.
    """
    tokens: list[str] = _entries(file, "tokens")
    kinds: list[int] = file.metadata.get("tokenizer.ggml.token_type") or [_TokenType.NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise TokenizerError(f"{file.path}: {len(tokens)} tokens but {len(kinds)} token types")
    named = {
        role: _named_id(file, f"{role}_token_id", len(tokens))
        for role in ("bos", "eos", "eot", "eom", "padding", "unknown")
    }
    control_ids = {id for id, kind in enumerate(kinds) if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN)}
    # Not padding and unknown: some files give them the id of an ordinary token.
    control_ids |= {id for role in ("bos", "eos", "eot", "eom") if (id := named[role]) is not None}
    added_ids = control_ids | {id for id, kind in enumerate(kinds) if kind == _TokenType.USER_DEFINED}
    definition = _definition(file, tokens, kinds)
    definition["added_tokens"] = [
        added_token(id, tokens[id], special=id in control_ids)
        for id in sorted(added_ids)
        if definition["model"]["vocab"][tokens[id]] == id  # of entries spelled alike, text leads to the last
    ]

    def name(role: str) -> str | None:
        id = named[role]
        return None if id is None else tokens[id]

    return TokenizerSpec(
        definition=definition,
        control=frozenset(tokens[id] for id in control_ids),
        eos_ids=_eos_ids(tokens, control_ids, named),
        bos=name("bos"),
        eos=name("eos"),
        pad=name("padding"),
        unk=name("unknown"),
        add_bos=_adds_bos(file),
        chat_templates=_chat_templates(file),
    )


def _adds_bos(file: GGUFFile) -> bool:
    """What the file says, else what llama.cpp does for its kind of tokenizer."""
    usual = file.metadata.get("tokenizer.ggml.model") == "llama" or _pre_tokenizer(file) in _WHOLE_WORDS_FIRST
    return bool(file.metadata.get("tokenizer.ggml.add_bos_token", usual))


def _chat_templates(file: GGUFFile) -> dict[str, str]:
    key = "tokenizer.chat_template"
    named = {
        name.removeprefix(f"{key}."): str(source)
        for name, source in file.metadata.items()
        if name.startswith(f"{key}.")
    }
    return named | ({"default": str(file.metadata[key])} if file.metadata.get(key) else {})


def _pre_tokenizer(file: GGUFFile) -> str:
    given = str(file.metadata.get("tokenizer.ggml.pre", "default"))
    return _ALIASES.get(given, given)


def _definition(file: GGUFFile, tokens: list[str], kinds: list[int]) -> _Json:
    model = file.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level_bpe(file, tokens)
    if model == "llama":
        return _sentencepiece_bpe(file, tokens, kinds)
    raise TokenizerError(f"{file.path}: tokenizer model {model!r} is not supported ('gpt2' and 'llama' are)")


def _byte_level_bpe(file: GGUFFile, tokens: list[str]) -> _Json:
    pre = _pre_tokenizer(file)
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted([*_PRE_TOKENIZERS, *_ALIASES]))
        raise TokenizerError(f"{file.path}: pre-tokenizer {pre!r} is not supported ({known} are)")
    return {
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": _entries(file, "merges"),
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
        },
        "normalizer": {"type": "NFC"} if file.metadata.get("tokenizer.ggml.pre") == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(_PRE_TOKENIZERS[pre])},
        "decoder": _byte_level(use_regex=True),
    }


def _sentencepiece_bpe(file: GGUFFile, tokens: list[str], kinds: list[int]) -> _Json:
    prefix_space = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown = _named_id(file, "unknown_token_id", len(tokens)) or 0
    normalizers: list[_Json] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    decoders: list[_Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix_space:
        # As SentencePiece and llama.cpp do it: before the text and after every control token in it.
        normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": file.metadata.get("tokenizer.ggml.merges") or _merges(file, tokens, kinds),
            "unk_token": tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
        },
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def _merges(file: GGUFFile, tokens: list[str], kinds: list[int]) -> list[tuple[str, str]]:
    """The merges a SentencePiece vocabulary implies: every cut of a piece into two, best score first."""
    scores: list[float] = _entries(file, "scores")
    if len(scores) != len(tokens):
        raise TokenizerError(f"{file.path}: {len(tokens)} tokens but {len(scores)} scores")
    pieces = {token: id for id, token in enumerate(tokens) if kinds[id] == _TokenType.NORMAL}
    cuts = [
        (-scores[id], pieces[left], pieces[right], left, right)
        for token, id in pieces.items()
        for cut in range(1, len(token))
        if (left := token[:cut]) in pieces and (right := token[cut:]) in pieces
    ]
    return [(left, right) for *_, left, right in sorted(cuts)]


def _entries(file: GGUFFile, key: str) -> list[Any]:
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not value:
        raise TokenizerError(
            f"{file.path}: 'tokenizer.ggml.{key}' is missing: the file carries no usable tokenizer"
        )
    return value


def _named_id(file: GGUFFile, key: str, num_tokens: int) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < num_tokens:
        raise TokenizerError(
            f"{file.path}: 'tokenizer.ggml.{key}' is {value!r}, outside the {num_tokens} tokens"
        )
    return value


def _eos_ids(tokens: list[str], control: set[int], named: Mapping[str, int | None]) -> frozenset[int]:
    ids = {id for role in ("eos", "eot", "eom") if (id := named[role]) is not None}
    if named["eot"] is None:
        ids |= {id for id in control if tokens[id] in _END_OF_TURN}
    return frozenset(ids)
