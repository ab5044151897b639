"""From a batch's logits to its next tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from trunkline.attention.streams import to_device
from trunkline.runtime.transfer import HostCopy

from .device_drawing import draw_on_device
from .drawing import draw
from .grammar import Mask
from .logprobs import TokenLogprobs, token_logprobs
from .penalties import SampleRow, adjust_logits, restrict_logits
from .randomness import uniforms
from .rows import Floats, best, take

__all__ = ["SampleOutput", "Sampler", "Sampling"]

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


class Sampling:
    """Tokens being sampled: `ids`, int64 [n] on the logits' device, is their place; `result` waits for them.

    Rows that failed have some id of the vocabulary in `ids`, so that whatever is queued behind can run.
    """

    def __init__(
        self, ids: torch.Tensor, peaks: torch.Tensor, logits: torch.Tensor, rows: Sequence[SampleRow]
    ) -> None:
        self.ids = ids
        self._arriving = HostCopy(ids, peaks)
        self._logits = logits
        self._rows = rows

    def result(self) -> SampleOutput:
        """The tokens on the host, with what went wrong and the log-probabilities that rows asked for."""
        tokens, peaks = self._arriving.arrays()
        failed = _failures(self._logits, peaks)
        scored = [
            index
            for index, row in enumerate(self._rows)
            if row.params.logprobs is not None and index not in failed
        ]
        logprobs: list[TokenLogprobs] = []
        if scored:
            num_top = [self._rows[index].params.logprobs or 0 for index in scored]
            logprobs = token_logprobs(take(self._logits, scored), tokens[scored], num_top)
        if failed:
            tokens = tokens.copy()
            tokens[list(failed)] = -1
        return SampleOutput(tokens, failed, dict(zip(scored, logprobs, strict=True)))


class Sampler:
    """Samples a batch's tokens in one call; stateless: a token is a function of its logits and its row."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device

    def begin(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], masks: Mapping[int, Mask] | None = None
    ) -> Sampling:
        """Begins to sample a token for each row of the logits [n, vocab], float32, which are left as they are.

        `masks` has, by row, what a constraint adds (0 or -inf, by token); a row that it lacks may take any.
        A row whose logits can't be sampled is reported in `failed`; the others are not affected. Greedy
        rows without penalties cost an argmax, drawn rows a few passes over their logits (see drawing.py), or on
        a CUDA device a sort (see device_drawing.py): there the host never waits.
        """
        assert logits.shape == (len(rows), self._vocab_size), "one row of logits for each request"
        assert (logits.dtype, logits.device.type) == (torch.float32, self._device.type)
        adjusted = restrict_logits(adjust_logits(logits, rows, masks), logits, masks or {})
        ids, peaks = best(adjusted)
        if any(not row.params.is_greedy for row in rows):
            self._draw(adjusted, rows, ids, peaks)
        return Sampling(ids, peaks, logits, rows)

    def sample(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], masks: Mapping[int, Mask] | None = None
    ) -> SampleOutput:
        """`begin` and its result at once."""
        return self.begin(logits, rows, masks).result()

    @staticmethod
    def _draw(
        adjusted: torch.Tensor, rows: Sequence[SampleRow], ids: torch.Tensor, peaks: torch.Tensor
    ) -> None:
        """Puts drawn tokens in the place of the likeliest, in the rows that draw and can."""
        drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy]
        on_host = ids.device.type == "cpu"
        if on_host:
            sound = peaks.isfinite().tolist()
            drawn = [index for index in drawn if sound[index]]
        if not drawn:
            return
        params = [rows[index].params for index in drawn]
        numbers = uniforms(
            [rows[index].seed for index in drawn], [rows[index].num_output_tokens for index in drawn]
        )
        places = to_device(np.array(drawn), ids.device)
        logits = adjusted if len(drawn) == len(rows) else adjusted[places]
        if on_host:
            tokens = torch.from_numpy(draw(logits, params, peaks[places].numpy(), numbers))
        else:
            tokens = draw_on_device(logits, params, numbers)
        ids.index_copy_(0, places, tokens)


def _failures(logits: torch.Tensor, peaks: Floats) -> dict[int, str]:
    """Why rows can't be sampled, from the largest adjusted logit: only a sound row has a finite one."""
    failed = {}
    for index in np.flatnonzero(~np.isfinite(peaks)).tolist():
        banned = np.isneginf(peaks[index]) and bool(logits[index].isfinite().any())
        failed[index] = ALL_FORBIDDEN if banned else NON_FINITE
    return failed
