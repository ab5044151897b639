"""Text from tokens, as they come."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Iterable

__all__ = ["IncrementalDetokenizer"]


class IncrementalDetokenizer:
    """Turns token ids into text piece by piece; the pieces together are the decoding of all ids at once.

    Works on bytes, so a character that is spread over tokens is held back until it is whole. Bytes that
    can't be UTF-8 become U+FFFD as soon as that is certain: one for each maximal beginning of a character,
    as the Unicode standard recommends (and one-shot decoding does). O(1) a token.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skipped_ids: Container[int] = ()) -> None:
        """`token_bytes`: the bytes a token stands for. `skipped_ids`: tokens that leave no text."""
        self._token_bytes = token_bytes
        self._skipped_ids = skipped_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def append(self, token_ids: Iterable[int]) -> str:
        """The text these tokens complete."""
        shown = [self._token_bytes(token_id) for token_id in token_ids if token_id not in self._skipped_ids]
        return self._decoder.decode(b"".join(shown))

    def finish(self) -> str:
        """U+FFFD if the text ends inside of a character, else nothing; a second call gives nothing."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
