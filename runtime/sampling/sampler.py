"""From a batch's logits to its next tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .drawing import draw
from .grammar import Mask
from .logprobs import TokenLogprobs, token_logprobs
from .penalties import SampleRow, adjust_logits, restrict_logits
from .randomness import uniforms
from .rows import Floats, Indices, argmax, take

__all__ = ["SampleOutput", "Sampler"]

NON_FINITE = "non-finite logits"
ALL_FORBIDDEN = "every token is forbidden"


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """What was sampled, by row.

    tokens: int64 [n]; -1 in the rows that failed.
    failed: row -> why it has no token: "non-finite logits" or "every token is forbidden".
    logprobs: row -> log-probabilities, for the rows that asked and didn't fail.
    """

    tokens: npt.NDArray[np.int64]
    failed: Mapping[int, str]
    logprobs: Mapping[int, TokenLogprobs]


class Sampler:
    """Samples a batch's tokens in one call; stateless: a token is a function of its logits and its row."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], masks: Mapping[int, Mask] | None = None
    ) -> SampleOutput:
        """One token for each row of the logits [n, vocab], float32, which are left as they are.

        `masks` has, by row, what a constraint adds (0 or -inf, by token); a row that it lacks may take any.
        A row whose logits can't be sampled is reported in `failed`; the others are not affected. Greedy
        rows without penalties cost an argmax; drawn rows a few passes over their logits (see drawing.py).
        """
        assert logits.shape == (len(rows), self._vocab_size), "one row of logits for each request"
        assert (logits.dtype, logits.device.type) == (torch.float32, self._device.type)
        adjusted = restrict_logits(adjust_logits(logits, rows), logits, masks or {})
        tokens, peaks = argmax(adjusted)
        failed = _failures(logits, peaks)
        drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy and index not in failed]
        if drawn:
            tokens[drawn] = self._draw(take(adjusted, drawn), [rows[index] for index in drawn], peaks[drawn])
        scored = [
            index for index, row in enumerate(rows) if row.params.logprobs is not None and index not in failed
        ]
        logprobs = _score(take(logits, scored), tokens[scored], [rows[index] for index in scored])
        tokens[list(failed)] = -1
        return SampleOutput(tokens, failed, dict(zip(scored, logprobs, strict=True)))

    @staticmethod
    def _draw(logits: torch.Tensor, rows: Sequence[SampleRow], peaks: Floats) -> Indices:
        numbers = uniforms([row.seed for row in rows], [row.num_output_tokens for row in rows])
        return draw(logits, [row.params for row in rows], peaks, numbers)


def _failures(logits: torch.Tensor, peaks: Floats) -> dict[int, str]:
    """Why rows can't be sampled, from the largest adjusted logit: only a sound row has a finite one."""
    failed = {}
    for index in np.flatnonzero(~np.isfinite(peaks)).tolist():
        banned = np.isneginf(peaks[index]) and bool(logits[index].isfinite().any())
        failed[index] = ALL_FORBIDDEN if banned else NON_FINITE
    return failed


def _score(logits: torch.Tensor, tokens: Indices, rows: Sequence[SampleRow]) -> list[TokenLogprobs]:
    return token_logprobs(logits, tokens, [row.params.logprobs or 0 for row in rows])
