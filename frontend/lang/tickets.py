"""The requests of programs on an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.outputs import Choice, RequestOutput
from trunkline.runtime.sampling import SamplingParams, TokenLogprobs

from .errors import BackendError
from .ordering import Key, prefix_key
from .prefixes import sequence_key

__all__ = ["Ticket"]


class Ticket:
    """One request of a program: `done` is resolved when all its choices are finished.

    `follows` marks a prompt that goes on behind an answer of the model: its pages are still warm.
    """

    def __init__(
        self,
        tokens: Int32Array,
        params: SamplingParams,
        done: asyncio.Future[None],
        on_text: Callable[[str], None] | None,
        follows: bool,
    ) -> None:
        self.tokens = tokens
        self.params = params
        self.done = done
        self.follows = follows
        self.id: str | None = None
        self.choices = [Choice() for _ in range(params.n)]
        self.scored: tuple[TokenLogprobs | None, ...] | None = None
        self.prompt_key = sequence_key(tokens)
        self.key: Key = prefix_key(self.prompt_key)
        self._on_text = on_text

    def add(self, output: RequestOutput) -> None:
        """Takes what a step brought."""
        self.choices[output.index].add(output)
        if output.prompt_logprobs is not None:
            self.scored = output.prompt_logprobs
        if self._on_text is not None and output.index == 0 and output.text:
            self._on_text(output.text)

    def finish(self) -> None:
        """Resolves `done`: with BackendError where a choice did not come to its end."""
        if self.done.done():
            return
        for choice in self.choices:
            if choice.finish_reason not in ("stop", "length"):
                self.done.set_exception(BackendError(choice.error or "the request was aborted"))
                return
        self.done.set_result(None)
