"""The text of one choice: its tokens decoded as they come, up to a stop string."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

from trunkline.runtime.sampling import SamplingParams

from .detokenizer import IncrementalDetokenizer
from .stops import StopAutomaton, StopMatcher

__all__ = ["OutputText", "TextDelta", "TokenDecoder"]


class TokenDecoder(Protocol):
    """What the text needs of a tokenizer."""

    @property
    def special_ids(self) -> Container[int]:
        """Ids that `skip_special_tokens` leaves out."""
        ...

    def id_to_bytes(self, id: int, /) -> bytes:
        """The bytes a token stands for."""
        ...


class TextDelta(NamedTuple):
    """Text that is final and can be shown, and the stop string if one was completed.

    num_tokens: how many of the appended tokens belong to the output: all, or those up to the end of the stop.
    """

    text: str
    stop: str | None = None
    num_tokens: int = 0


class OutputText:
    """Decodes the tokens of one choice and looks for its stop strings.

    The text is what the tokens add to the prompt's, so a SentencePiece output keeps the blank it begins with.
    A stop counts only if it lies wholly in the text of the tokens after the first `params.min_tokens`; a
    character belongs to the token that completes it.
    """

    def __init__(
        self, tokenizer: TokenDecoder, params: SamplingParams, automaton: StopAutomaton | None = None
    ) -> None:
        """`automaton`: that of `params.stops`, where the choices of a request share it; else it is built."""
        self._detokenizer = IncrementalDetokenizer(
            tokenizer.id_to_bytes, tokenizer.special_ids if params.skip_special_tokens else ()
        )
        self._matcher = StopMatcher(
            automaton or StopAutomaton(params.stops), include_stop=params.include_stop_str_in_output
        )
        self._num_unmatched = params.min_tokens if params.stops else sys.maxsize
        self._stopped = False

    def append(self, token_ids: Sequence[int]) -> TextDelta:
        """The text that these tokens make certain; nothing once a stop was found."""
        if self._stopped:
            return TextDelta("")
        num_free = min(self._num_unmatched, len(token_ids))
        self._num_unmatched -= num_free
        text = self._detokenizer.append(token_ids[:num_free])
        for count, token_id in enumerate(token_ids[num_free:], start=num_free + 1):
            more, stop = self._matcher.feed(self._detokenizer.append((token_id,)))
            text += more
            if stop is not None:
                self._stopped = True
                return TextDelta(text, stop, count)
        return TextDelta(text, num_tokens=len(token_ids))

    def finish(self) -> TextDelta:
        """What was held back, at the end of the output; a second call gives nothing."""
        if self._stopped:
            return TextDelta("")
        text, stop = self._matcher.feed(self._detokenizer.finish())
        self._stopped = True
        return TextDelta(text if stop is not None else text + self._matcher.release(), stop)
