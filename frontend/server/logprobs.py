"""Log-probabilities in the two forms OpenAI gives them."""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.runtime.engine.outputs import RequestOutput
from trunkline.runtime.loading import Tokenizer
from trunkline.runtime.sampling import TokenLogprobs

from .answers import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TokenLogprob

__all__ = ["CompletionScores", "chat_logprobs", "joined", "visible_logprobs"]


def visible_logprobs(output: RequestOutput) -> Sequence[TokenLogprobs]:
    """The entries of an output, less that of the stop token, which is no part of the text."""
    entries = output.logprobs or ()
    return entries[:-1] if isinstance(output.stop, int) else entries


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """As in chat completions; a token that is a part of a character shows as U+FFFD, and has its bytes."""
    content = []
    for entry in entries:
        token, *top = [
            _scored(tokenizer, scored.token_id, scored.logprob) for scored in (entry.token, *entry.top)
        ]
        content.append(ChatTokenLogprob(token.token, token.logprob, token.bytes, top))
    return ChatLogprobs(content)


def _scored(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenLogprob:
    data = tokenizer.id_to_bytes(token_id)
    return TokenLogprob(data.decode("utf-8", "replace"), logprob, list(data))


class CompletionScores:
    """The form of text completions, for one choice from its first token on.

    `text_offset` counts characters; a token that ends inside a character is spelled `bytes:\\xe2\\x80`.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def prompt(self, ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """The tokens of an echoed prompt; those not scored, like the first, have no log-probability."""
        return self._built([(int(id), entry) for id, entry in zip(ids, entries, strict=True)])

    def add(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """The next tokens of the choice."""
        return self._built([(entry.token.token_id, entry) for entry in entries])

    def _built(self, tokens: Sequence[tuple[int, TokenLogprobs | None]]) -> CompletionLogprobs:
        offsets = []
        for token_id, _ in tokens:
            offsets.append(self._offset)
            self._offset += _num_characters(self._tokenizer.id_to_bytes(token_id))
        return CompletionLogprobs(
            tokens=[self._spelled(token_id) for token_id, _ in tokens],
            token_logprobs=[None if entry is None else entry.token.logprob for _, entry in tokens],
            top_logprobs=[self._top(entry) for _, entry in tokens] if self._num_top else None,
            text_offset=offsets,
        )

    def _top(self, entry: TokenLogprobs | None) -> dict[str, float] | None:
        """The likeliest tokens by their text; where two have the same, the likelier stays."""
        if entry is None:
            return None
        return {self._spelled(scored.token_id): scored.logprob for scored in reversed(entry.top)}

    def _spelled(self, token_id: int) -> str:
        data = self._tokenizer.id_to_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _num_characters(data: bytes) -> int:
    """Characters that begin in these bytes of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Several stretches of one choice as one."""
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=(
            None
            if any(part.top_logprobs is None for part in parts)
            else [value for part in parts for value in part.top_logprobs or ()]
        ),
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
