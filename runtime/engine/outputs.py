"""What the engine hands out: deltas while a request runs, and whole generations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from trunkline.radix.explain import Explanation, Reason
from trunkline.runtime.sampling import TokenLogprobs

__all__ = ["Choice", "Generation", "RequestOutput", "merge"]


class RequestOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step added to one choice (`index`) of one request (`id`).

    `text` holds only characters that can no longer become part of a stop string; `token_ids` are the step's
    new tokens. `logprobs` has one entry a token where the request asked for them, `prompt_logprobs` comes once,
    with the first token, one entry a prompt token from `prompt_logprobs_start` on (the prompt's first is None).
    `last` marks the output after which nothing more comes for any choice of the request. `explanation` comes with
    the first output of a request that asked for it: the partition of its prompt into cached and missed tokens,
    with reasons. `at` is when its step ended, in Unix seconds, where the engine runs in a process of its own; equal
    for all outputs of a step.
    """

    id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    last: bool
    stop: str | int | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
    explanation: dict[str, Any] | None = None
    at: float = 0.0


def explained(explanation: Explanation, num_cached: int) -> dict[str, Any]:
    """The parts of a prompt as JSON-ready values: start, end, reason and what is known of it.

    `num_cached` tokens were really taken from the cache; where it had more, they were computed again for their
    logits (`prompt_logprobs`).
    """
    parts: list[dict[str, Any]] = []
    for part in explanation.parts:
        recomputed = part.reason is Reason.CACHED and part.end > num_cached
        middle = max(part.start, num_cached) if recomputed else part.end
        if middle > part.start:
            parts.append({"start": part.start, "end": middle, "reason": str(part.reason), **part.detail})
        if part.end > middle:
            parts.append({"start": middle, "end": part.end, "reason": "prompt_logprobs"})
    return {"num_tokens": explanation.num_tokens, "parts": parts}


def merge(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """Two successive outputs of one choice as one."""
    logprobs = (*(earlier.logprobs or ()), *(later.logprobs or ()))
    return msgspec.structs.replace(
        later,
        text=earlier.text + later.text,
        token_ids=earlier.token_ids + later.token_ids,
        logprobs=logprobs or None,
        prompt_logprobs=earlier.prompt_logprobs or later.prompt_logprobs,
        explanation=earlier.explanation or later.explanation,
    )


@dataclass(slots=True)
class Choice:
    """One finished continuation of a prompt; `finish_reason` is stop, length, abort or error."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop: str | int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None

    def add(self, output: RequestOutput) -> None:
        """Appends what a step brought."""
        self.text += output.text
        self.token_ids.extend(output.token_ids)
        self.finish_reason, self.stop, self.error = output.finish_reason, output.stop, output.error
        self.num_cached_tokens, self.num_preemptions = output.num_cached_tokens, output.num_preemptions
        if output.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *output.logprobs]


@dataclass(slots=True)
class Generation:
    """A prompt and its `n` continuations; the properties speak of the first."""

    prompt: str | None
    prompt_token_ids: list[int]
    choices: list[Choice]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were not computed, because the cache had them when the first choice began."""
        return self.choices[0].num_cached_tokens
