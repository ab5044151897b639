"""A step that was launched and whose result is still to be fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from trunkline.runtime.sampling import Grammars, TokenLogprobs, prompt_logprobs
from trunkline.runtime.sampling.sampler import NON_FINITE, Sampling
from trunkline.runtime.transfer import HostCopy
from trunkline.scheduler import ScheduledRequest, StepResult

from .rows import SamplingState, constrained

__all__ = ["BrokenStep", "LaunchedStep", "RunnerOutput", "StepHandle"]


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What a step brought: the result for the scheduler, and the log-probabilities that requests asked for.

    `prompt_logprobs[id]` is the position of the first scored logits and an entry for each prompt token they predict.
    """

    step: StepResult
    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, tuple[int, Sequence[TokenLogprobs]]] = field(default_factory=dict)


class StepHandle(Protocol):
    """What a launch gives: the promise of the step's result."""

    def result(self) -> RunnerOutput:
        """Waits for the step; raises what went wrong in it. Steps are asked in the order of their launch."""
        ...


@dataclass(frozen=True, slots=True)
class BrokenStep:
    """A step that could not be launched."""

    error: Exception

    def result(self) -> RunnerOutput:
        raise self.error


class LaunchedStep:
    """One step of a `ModelRunner`, on its way.

    Args:
        scheduled: whom it computes.
        scored: by request id the first scored position and the logits [n, vocab] from there on.
        sampling: the tokens of those who sample, in their order.
        sound: bool, on the device, one for each of the others: whether its last logits are finite.
    """

    def __init__(
        self,
        scheduled: Sequence[ScheduledRequest],
        grammars: Grammars,
        *,
        scored: Mapping[str, torch.Tensor],
        sampling: Sampling | None,
        sound: torch.Tensor | None,
        copy_elapsed: float | None,
    ) -> None:
        self._sampled = [request for request in scheduled if request.samples]
        self._cut = [request for request in scheduled if not request.samples]
        self._scored = [request for request in scheduled if request.id in scored]
        self._grammars = grammars
        self._scored_logits = scored
        self._sampling = sampling
        self._sound = HostCopy(sound) if sound is not None else None
        self._copy_elapsed = copy_elapsed

    def result(self) -> RunnerOutput:
        """Tokens for the requests that sampled; the others' chunks fail where they end in logits that aren't finite."""
        failed: dict[str, str] = {}
        tokens: dict[str, Sequence[int]] = {}
        logprobs: dict[str, TokenLogprobs] = {}
        if self._sound is not None:
            (sound,) = self._sound.arrays()
            failed = {
                request.id: NON_FINITE
                for request, is_sound in zip(self._cut, sound.tolist(), strict=True)
                if not is_sound
            }
        if self._sampling is not None:
            picked = self._sampling.result()
            failed |= {self._sampled[index].id: reason for index, reason in picked.failed.items()}
            tokens = {
                request.id: (token, *self._forced(request, token))
                for request, token in zip(self._sampled, picked.tokens.tolist(), strict=True)
                if request.id not in failed
            }
            logprobs = {self._sampled[index].id: entry for index, entry in picked.logprobs.items()}
        step = StepResult(tokens=tokens, failed=failed, copy_elapsed=self._copy_elapsed)
        return RunnerOutput(step, logprobs, {request.id: self._score(request) for request in self._scored})

    def _forced(self, request: ScheduledRequest, token: int) -> tuple[int, ...]:
        """Tokens that a constraint leaves no choice about: they come without a step each, and without logprobs."""
        waiting = constrained(request)
        if waiting is None or request.payload.params.logprobs is not None:
            return ()
        return self._grammars.forced(waiting, token)

    def _score(self, request: ScheduledRequest) -> tuple[int, Sequence[TokenLogprobs]]:
        assert request.logits_from is not None
        state: SamplingState = request.payload
        first = max(request.logits_from, request.start)
        logits = self._scored_logits[request.id]
        targets = request.history[first + 1 : first + 1 + len(logits)]
        return first, prompt_logprobs(logits, targets, state.params.prompt_logprobs or 0)
