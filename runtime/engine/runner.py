"""From a plan to tokens: page moves, one forward pass, sampling."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from trunkline.attention import AttentionBackend, AttentionMetadata, HostPool, KVPool
from trunkline.runtime.models import CausalLM
from trunkline.runtime.sampling import (
    Grammars,
    Mask,
    Sampler,
    SampleRow,
    SamplingParams,
    TokenLogprobs,
    Waiting,
    prompt_logprobs,
)
from trunkline.runtime.sampling.sampler import NON_FINITE
from trunkline.scheduler import ScheduledRequest, SchedulePlan, StepResult

__all__ = ["ModelRunner", "RunnerOutput", "SamplingState"]


@dataclass(frozen=True, slots=True)
class SamplingState:
    """What the scheduler carries for the runner: how a request samples, the seed it really uses, what ends it."""

    params: SamplingParams
    seed: int
    ending_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What a step brought: the result for the scheduler, and the log-probabilities that requests asked for.

    `prompt_logprobs[id]` is the position of the first scored logits and an entry for each prompt token they predict.
    """

    step: StepResult
    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, tuple[int, Sequence[TokenLogprobs]]] = field(default_factory=dict)


class ModelRunner:
    """Carries out plans on one device; owns the model, the page tensors and the sampler."""

    def __init__(
        self,
        model: CausalLM,
        backend: AttentionBackend,
        kv_pool: KVPool,
        sampler: Sampler,
        device: torch.device,
        grammars: Grammars,
        host_pool: HostPool | None = None,
    ) -> None:
        self.model = model
        self.grammars = grammars
        self._backend = backend
        self._kv_pool = kv_pool
        self._host_pool = host_pool
        self._sampler = sampler
        self._device = device
        self._page_size = kv_pool.config.page_size

    @torch.inference_mode()
    def run(self, plan: SchedulePlan) -> RunnerOutput:
        """Moves pages, computes every scheduled token and samples where a request's last known token was computed."""
        copy_elapsed = self._move_pages(plan)
        if not plan.scheduled:
            return RunnerOutput(StepResult(copy_elapsed=copy_elapsed))
        masks = self.grammars.begin(
            [waiting for request in plan.scheduled if (waiting := _constrained(request)) is not None]
        )
        logits = self._forward(plan.scheduled)
        scored: dict[str, tuple[int, Sequence[TokenLogprobs]]] = {}
        last_rows: list[int] = []
        row = 0
        for request in plan.scheduled:
            num_scored = _num_scored(request)
            if num_scored:
                scored[request.id] = _score(request, logits[row : row + num_scored])
            row += num_scored + 1
            last_rows.append(row - 1)
        if row != len(last_rows):
            logits = logits[last_rows]
        step, logprobs = self._sample(plan.scheduled, logits, masks.result() if masks is not None else {})
        step.copy_elapsed = copy_elapsed
        return RunnerOutput(step, logprobs, scored)

    def _sample(
        self, scheduled: Sequence[ScheduledRequest], logits: torch.Tensor, masks: Mapping[str, Mask]
    ) -> tuple[StepResult, dict[str, TokenLogprobs]]:
        """Tokens for the requests that sample; the others' chunks fail where they end in logits that aren't finite."""
        failed: dict[str, str] = {}
        sampling = [index for index, request in enumerate(scheduled) if request.samples]
        if len(sampling) != len(scheduled):
            cut = [index for index, request in enumerate(scheduled) if not request.samples]
            finite = logits[cut].isfinite().all(dim=-1).tolist()
            failed = {
                scheduled[index].id: NON_FINITE for index, sound in zip(cut, finite, strict=True) if not sound
            }
            logits = logits[sampling]
        requests = [scheduled[index] for index in sampling]
        picked = self._sampler.sample(
            logits,
            [_sample_row(request) for request in requests],
            {index: masks[request.id] for index, request in enumerate(requests) if request.id in masks},
        )
        failed |= {requests[index].id: reason for index, reason in picked.failed.items()}
        tokens = {
            request.id: (token, *self._forced(request, token))
            for request, token in zip(requests, picked.tokens.tolist(), strict=True)
            if request.id not in failed
        }
        logprobs = {requests[index].id: entry for index, entry in picked.logprobs.items()}
        return StepResult(tokens=tokens, failed=failed), logprobs

    def _forced(self, request: ScheduledRequest, token: int) -> tuple[int, ...]:
        """Tokens that a constraint leaves no choice about: they come without a step each, and without logprobs."""
        waiting = _constrained(request)
        if waiting is None or request.payload.params.logprobs is not None:
            return ()
        return self.grammars.forced(waiting, token)

    def _move_pages(self, plan: SchedulePlan) -> float | None:
        """Host copies leave first: the pages they free may be written by what follows. Returns the swaps' seconds."""
        swaps = len(plan.swap_out) + len(plan.swap_in)
        started = time.perf_counter()
        if len(plan.swap_out):
            assert self._host_pool is not None, "a plan swaps, but there is no host pool"
            self._host_pool.swap_out(plan.swap_out)
        swapping = time.perf_counter() - started
        if len(plan.page_copies):
            self._kv_pool.copy_pages(plan.page_copies)
        started = time.perf_counter()
        if len(plan.swap_in):
            assert self._host_pool is not None, "a plan swaps, but there is no host pool"
            self._host_pool.swap_in(plan.swap_in)
        return swapping + time.perf_counter() - started if swaps else None

    def _forward(self, scheduled: Sequence[ScheduledRequest]) -> torch.Tensor:
        """Logits [rows, vocab]: for each request its scored positions, then its last one, sampled or not."""
        lengths = np.array([len(request.tokens) for request in scheduled], dtype=np.int32)
        metadata = AttentionMetadata.build(
            starts=np.array([request.start for request in scheduled], dtype=np.int32),
            lengths=lengths,
            page_tables=[request.pages for request in scheduled],
            page_size=self._page_size,
        )
        self._backend.plan(metadata)
        rows = [
            _logits_rows(request, end) for request, end in zip(scheduled, np.cumsum(lengths), strict=True)
        ]
        ids = np.concatenate([request.tokens for request in scheduled])
        return self.model.forward(
            torch.from_numpy(ids.astype(np.int64)).to(self._device),
            self._backend,
            torch.from_numpy(np.concatenate(rows)).to(self._device),
        )


def _constrained(request: ScheduledRequest) -> Waiting | None:
    """What the grammars must know of a request that samples under a constraint."""
    state: SamplingState = request.payload
    if state.params.constraint is None or not request.samples:
        return None
    return Waiting(request.id, state.params.constraint, request.history[request.num_prompt_tokens :])


def _num_scored(request: ScheduledRequest) -> int:
    """How many of the step's positions predict a prompt token whose log-probability is wanted."""
    if request.logits_from is None:
        return 0
    first = max(request.logits_from, request.start)
    last = min(request.start + len(request.tokens), request.num_prompt_tokens - 1)
    return max(0, last - first)


def _logits_rows(request: ScheduledRequest, end: int) -> np.ndarray:
    """Rows of the step's hidden states that need logits; `end` is one past the request's last row."""
    begin = end - len(request.tokens)
    num_scored = _num_scored(request)
    rows = np.empty(num_scored + 1, dtype=np.int64)
    if num_scored:
        assert request.logits_from is not None
        first = begin + max(request.logits_from, request.start) - request.start
        rows[:num_scored] = np.arange(first, first + num_scored)
    rows[-1] = end - 1
    return rows


def _score(request: ScheduledRequest, logits: torch.Tensor) -> tuple[int, Sequence[TokenLogprobs]]:
    assert request.logits_from is not None
    state: SamplingState = request.payload
    first = max(request.logits_from, request.start)
    targets = request.history[first + 1 : first + 1 + len(logits)]
    return first, prompt_logprobs(logits, targets, state.params.prompt_logprobs or 0)


def _sample_row(request: ScheduledRequest) -> SampleRow:
    state: SamplingState = request.payload
    return SampleRow(
        params=state.params,
        history=request.history,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        seed=state.seed,
        banned_until_min=state.ending_token_ids,
    )
