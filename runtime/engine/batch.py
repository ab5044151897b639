"""Offline batches: every prompt queued at once, answers in the order of the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trunkline.radix import Namespace
from trunkline.runtime.errors import RequestError
from trunkline.runtime.sampling import SamplingParams

from .outputs import Choice, Generation
from .prompts import Prompt

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["run_batch"]


def run_batch(
    engine: Engine,
    prompts: Prompt | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    *,
    namespace: Namespace,
    progress: bool,
) -> list[Generation]:
    """What `Engine.generate` does; leaving it early, by an error or Ctrl-C, aborts what it queued."""
    many = _as_batch(prompts)
    each = _params_for(params, len(many))
    running: dict[str, Generation] = {}
    try:
        for prompt, one in zip(many, each, strict=True):
            tokens = engine.encode(prompt)
            text = prompt if isinstance(prompt, str) else None
            name = engine.add_request(tokens, one, namespace=namespace)
            running[name] = Generation(text, tokens.tolist(), [Choice() for _ in range(one.n)])
        with _progress_bar(hidden=not progress) as bar:
            task = bar.add_task("generating", total=sum(one.n for one in each))
            for output in engine.follow(set(running)):
                generation = running[output.id]
                generation.choices[output.index].add(output)
                if output.prompt_logprobs is not None:
                    generation.prompt_logprobs = output.prompt_logprobs
                if output.finish_reason is not None:
                    bar.advance(task)
    finally:
        for name in running:
            engine.abort(name)
    return list(running.values())


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text or ids) as a batch of one; a batch as it is."""
    if isinstance(prompts, str | np.ndarray) or (len(prompts) and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _params_for(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"there are {count} prompts but {len(params)} sampling params", "params")
    return list(params)


def _progress_bar(hidden: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=hidden)
