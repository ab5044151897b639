"""Backends and helpers for tests of the language."""

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from trunkline.frontend.lang.backends import Answer, Answers, Scores, Served
from trunkline.frontend.lang.content import Prompt
from trunkline.frontend.lang.errors import BackendError
from trunkline.frontend.lang.scoring import ChoiceLogprobs

NOTHING = Served(0, 0, 0)


class ToyBackend:
    """Answers with `<n>` for the n-th call; prompts in `broken` fail, those in `stuck` never end.

    Scores come from `logprobs`: by choice, the log-probability of each of its characters, which are its tokens;
    `unconditional` the same without the prompt.
    """

    def __init__(
        self,
        *,
        broken: Sequence[str] = (),
        stuck: Sequence[str] = (),
        logprobs: dict[str, Sequence[float]] | None = None,
        unconditional: dict[str, Sequence[float]] | None = None,
    ) -> None:
        self.prompts: list[Any] = []
        self.cancelled: list[str] = []
        self.num_open = 0
        self.ended_runs: list[tuple[int, bool]] = []
        self._broken = broken
        self._stuck = stuck
        self._logprobs = logprobs or {}
        self._unconditional = unconditional or {}

    async def __aenter__(self) -> "ToyBackend":
        self.num_open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.num_open -= 1

    def ended(self, run: int, *, more: bool) -> None:
        self.ended_runs.append((run, more))

    async def generate(
        self, prompt: Prompt, options: Any, on_text: Callable[[str], None] | None = None
    ) -> Answers:
        seen = prompt.text if prompt.messages is None else [*prompt.messages, prompt.begun]
        self.prompts.append(seen)
        number = len(self.prompts)
        text = prompt.text
        if any(part in text for part in self._broken):
            raise BackendError("the server answered 500", 500)
        if any(part in text for part in self._stuck):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(text)
                raise
        await asyncio.sleep(0)
        if on_text is not None:
            on_text("<")
            on_text(f"{number}>")
        answers = tuple(Answer(f"<{number}>", "stop") for _ in range(options.get("n", 1)))
        return Answers(answers, (NOTHING,))

    async def score(self, prompt: Prompt, choices: Sequence[str], *, unconditional: bool) -> Scores:
        self.prompts.append(list(choices))
        return Scores(
            tuple(
                ChoiceLogprobs(
                    tuple(map(ord, choice)),
                    tuple(self._logprobs[choice]),
                    tuple(self._unconditional[choice]) if unconditional else None,
                )
                for choice in choices
            ),
            (NOTHING,),
        )


@contextmanager
def nothing_left_behind():
    """No thread, and no event loop task, outlives the block."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert set(threading.enumerate()) <= before
