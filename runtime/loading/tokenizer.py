"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trunkline.runtime.errors import ChatTemplateError, RequestError, TokenizerError

from .chat_template import ChatTemplate, Message
from .sealing import Seals, sealed_backend
from .tokenizer_spec import TokenizerSpec
from .transcripts import NOTHING, Transcripts

Int32Array = npt.NDArray[np.int32]

_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation: token ids (int32) and the same as text, control tokens spelled out.

    `sealed` is the text in the tokenizer's own spelling of control tokens: what `Transcripts` know it by.
    """

    ids: Int32Array
    text: str
    sealed: str


class Tokenizer:
    """The face of every tokenizer: control tokens come from the chat template or on request, never from text.

    Ids are int32 arrays. Safe to use from several threads. `bos_token_id` and `pad_token_id` are None
    where the model has none, `eos_token_ids` holds every id that ends a generation, `special_ids` every
    control token.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._seals = Seals(sorted(spec.control))
        self._backend = sealed_backend(spec.definition, self._seals)
        self._added = {token["id"]: token["content"] for token in spec.definition["added_tokens"]}
        piece_bytes, self._strips_first_space = _byte_rule(spec.definition.get("decoder"))
        self._bytes_by_id = self._spell(piece_bytes)
        self.special_ids = frozenset(id for id, name in self._added.items() if name in spec.control)
        self.bos_token_id = self.token_to_id(spec.bos) if spec.bos is not None else None
        self.pad_token_id = self.token_to_id(spec.pad) if spec.pad is not None else None
        self.eos_token_ids = spec.eos_ids
        self.add_bos = spec.add_bos and self.bos_token_id is not None
        names = {"bos_token": spec.bos, "eos_token": spec.eos, "pad_token": spec.pad, "unk_token": spec.unk}
        self._chat_templates = {
            name: ChatTemplate(source, self._seals, names)
            for name, source in (spec.chat_templates or {}).items()
        }

    @property
    def vocab_size(self) -> int:
        """One more than the highest id; a model's output may be padded to more."""
        return len(self._bytes_by_id)

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work at all."""
        return bool(self._chat_templates)

    def encode(self, text: str, *, allow_special: bool = False, add_bos: bool | None = None) -> Int32Array:
        """The ids of `text`, int32 [tokens].

        With `allow_special` the names of control tokens in the text become those tokens; without, they
        are ordinary characters. `add_bos` None does what the model asks for; there is never more than
        one BOS at the start. Raises RequestError for a lone surrogate, which is no text, and
        TokenizerError when a BOS is asked of a model that has none. O(n log n).
        """
        return self._encode_sealed(self._seals.seal(text) if allow_special else text, add_bos)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`, control tokens left out or spelled out; bytes that are no UTF-8 are U+FFFD."""
        data = b"".join(
            self.id_to_bytes(id) for id in map(int, ids) if not (skip_special and id in self.special_ids)
        )
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strips_first_space else text

    def id_to_bytes(self, id: int) -> bytes:
        """The raw bytes token `id` stands for, perhaps a part of a character; b"" for an id no token has."""
        if id < 0:
            raise TokenizerError(f"token id {id} is negative")
        return self._bytes_by_id[id] if id < len(self._bytes_by_id) else b""

    def id_to_piece(self, id: int) -> str:
        """Token `id` as text to show a person; U+FFFD stands for a part of a character."""
        return self.id_to_bytes(id).decode("utf-8", "replace")

    def token_to_id(self, token: str) -> int:
        """The id of the token whose name in the vocabulary is `token`; TokenizerError when there is none."""
        id: int | None = self._backend.token_to_id(self._seals.of_name.get(token, token))
        if id is None:
            raise TokenizerError(f"there is no token {token!r} in the vocabulary")
        return id

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        transcripts: Transcripts | None = None,
        space: str = "",
    ) -> ChatPrompt:
        """The prompt of a conversation, in which only the chat template has made control tokens.

        `messages` and `tools` are what the template takes, usually OpenAI's form. `continue_final` leaves the
        last message open. What `transcripts` remember of the conversation keeps the tokens it has in the cache. A BOS
        is added if the model asks for one and the template hasn't written it. Raises
        ChatTemplateError when there is no template or it refuses the messages.
        """
        template = self._chat_templates.get("tool_use") if tools else None
        template = template or self._chat_templates.get("default")
        if template is None:
            raise ChatTemplateError("the model has no chat template; give it a plain prompt instead")
        sealed = template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            arguments=template_arguments,
        )
        known = transcripts.longest(sealed, space) if transcripts is not None else NOTHING
        if known.num_characters:
            rest = self._encode_sealed(sealed[known.num_characters :], False)
            ids = np.concatenate([known.ids, rest])
        else:
            ids = self._encode_sealed(sealed, None)
        return ChatPrompt(ids, self._seals.unseal(sealed), sealed)

    def _encode_sealed(self, text: str, add_bos: bool | None) -> Int32Array:
        if surrogate := _SURROGATE.search(text):
            raise RequestError(
                f"the text holds the lone surrogate U+{ord(surrogate[0]):04X}"
                f" at character {surrogate.start()}"
            )
        # The batch form, also for one text: it lets go of the GIL, so that other threads keep their pace.
        ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if self.add_bos if add_bos is None else add_bos:
            if self.bos_token_id is None:
                raise TokenizerError("a BOS token was asked for, but the model has none")
            if ids[:1] != [self.bos_token_id]:
                ids.insert(0, self.bos_token_id)
        return np.array(ids, np.int32)

    def _spell(self, piece_bytes: Callable[[str], bytes]) -> list[bytes]:
        """The bytes of each id."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        table = [b""] * (max(vocabulary.values()) + 1)
        for piece, id in vocabulary.items():
            table[id] = piece_bytes(piece)
        for id, content in self._added.items():
            table[id] = content.encode()
        return table


def _byte_rule(decoder: Mapping[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """How a vocabulary entry spells its bytes, and whether a text's first blank is an artefact.

    Raises TokenizerError for a decoder that is neither byte-level nor SentencePiece's.
    """
    parts = decoder.get("decoders", [decoder]) if decoder else []
    kinds = [part["type"] for part in parts]
    if "ByteLevel" in kinds:
        return _byte_level_bytes, False
    if "Metaspace" in kinds:
        return _sentencepiece_bytes, parts[kinds.index("Metaspace")].get(
            "prepend_scheme", "always"
        ) != "never"
    if "ByteFallback" in kinds or "Replace" in kinds:
        return _sentencepiece_bytes, any(part["type"] == "Strip" and part["start"] for part in parts)
    raise TokenizerError(
        f"decoder {'+'.join(kinds) or None!r} is not supported (byte-level and SentencePiece are)"
    )


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 characters as they are, the other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES_IN_LATIN_1 = str.maketrans(
    dict.fromkeys(map(chr, range(256)), "\uffff")  # what spells nothing can't be encoded
    | {character: chr(byte) for character, byte in _byte_level_alphabet().items()}
)


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return piece.translate(_BYTES_IN_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:  # not spelled that way: an entry that no text leads to
        return piece.encode()


def _sentencepiece_bytes(piece: str) -> bytes:
    if byte := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    return piece.replace("▁", " ").encode()
