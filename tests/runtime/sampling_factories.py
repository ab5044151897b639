"""Rows and logits for tests, with complete defaults."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from trunkline.runtime.sampling import SampleOutput, Sampler, SampleRow, SamplingParams


def make_row(
    *,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    seed: int = 0,
    banned_until_min: Collection[int] = (),
    **options: Any,
) -> SampleRow:
    """A row of a request that has this prompt and output; `options` are those of SamplingParams."""
    return SampleRow(
        params=SamplingParams(**options),
        history=np.array([*prompt, *output], dtype=np.int32),
        num_prompt_tokens=len(prompt),
        num_output_tokens=len(output),
        seed=seed,
        banned_until_min=banned_until_min,
    )


def sample(logits: Sequence[Sequence[float]] | np.ndarray, rows: Sequence[SampleRow]) -> SampleOutput:
    """One call of a sampler of the logits' vocabulary size, on the CPU."""
    tensor = torch.tensor(np.asarray(logits, dtype=np.float32))
    return Sampler(tensor.shape[1], torch.device("cpu")).sample(tensor, rows)


def sample_one(logits: Sequence[float] | np.ndarray, row: SampleRow) -> int:
    """The token of a single row."""
    return int(sample([logits], [row]).tokens[0])
