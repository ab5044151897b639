"""From a plan to tokens: page moves, one forward pass, sampling."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from trunkline.attention import AttentionBackend, AttentionMetadata, HostPool, KVPool
from trunkline.attention.streams import to_device
from trunkline.runtime.models import CausalLM
from trunkline.runtime.sampling import Grammars, Mask, Sampler, Sampling
from trunkline.scheduler import ScheduledRequest, SchedulePlan

from .decode_graphs import DecodeGraphs
from .launched_step import LaunchedStep
from .rows import constrained, logits_rows, num_scored, sample_row

__all__ = ["ModelRunner"]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """The tokens that a step samples, still on the device: the row of each request in `ids`, int64 [n]."""

    rows: Mapping[str, int] = field(default_factory=dict)
    ids: torch.Tensor | None = None

    def fill_in(self, scheduled: Sequence[ScheduledRequest], token_ids: torch.Tensor) -> torch.Tensor:
        """Puts them into the next step's token ids where they are pending, on the device and in stream order.

        Of a step that broke there are none. Its requests have failed, so any token will do in their place.
        """
        places, sources = [], []
        place = 0
        for request in scheduled:
            if request.pending:
                places.append(place)
                sources.append(self.rows.get(request.id, 0))
            place += len(request.tokens)
        if not places:
            return token_ids
        device = token_ids.device
        ids = torch.zeros(1, dtype=torch.int64, device=device) if self.ids is None else self.ids
        tokens = ids.index_select(0, to_device(np.array(sources), device))
        return token_ids.index_copy_(0, to_device(np.array(places), device), tokens)


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
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model = model
        self.graphs = graphs
        self.grammars = grammars
        self._backend = backend
        self._kv_pool = kv_pool
        self._host_pool = host_pool
        self._sampler = sampler
        self._device = device
        self._page_size = kv_pool.config.page_size
        self._last = _Sampled()

    @torch.inference_mode()
    def launch(self, plan: SchedulePlan) -> LaunchedStep:
        """Begins a step: moves pages, computes every scheduled token, samples where the last known one was computed.

        On a CUDA device all of it is only queued when this returns; the plan's arrays are not needed any more.
        """
        last, self._last = self._last, _Sampled()
        copy_elapsed = self._move_pages(plan)
        scheduled = plan.scheduled
        if not scheduled:
            return LaunchedStep(
                (), self.grammars, scored={}, sampling=None, sound=None, copy_elapsed=copy_elapsed
            )
        masks = self.grammars.begin(
            [waiting for request in scheduled if (waiting := constrained(request)) is not None]
        )
        logits = self._forward(scheduled, last)
        scored: dict[str, torch.Tensor] = {}
        last_rows: list[int] = []
        row = 0
        for request in scheduled:
            count = num_scored(request)
            if count:
                scored[request.id] = logits[row : row + count]
            row += count + 1
            last_rows.append(row - 1)
        if row != len(last_rows):
            logits = logits[to_device(np.array(last_rows), self._device)]
        sampling, sound = self._sample(scheduled, logits, masks.result() if masks is not None else {})
        return LaunchedStep(
            scheduled,
            self.grammars,
            scored=scored,
            sampling=sampling,
            sound=sound,
            copy_elapsed=copy_elapsed,
        )

    def _sample(
        self, scheduled: Sequence[ScheduledRequest], logits: torch.Tensor, masks: Mapping[str, Mask]
    ) -> tuple[Sampling | None, torch.Tensor | None]:
        """Begins to sample for the requests that do; the others' logits are looked at for what isn't finite."""
        sound = None
        sampling = [index for index, request in enumerate(scheduled) if request.samples]
        if len(sampling) != len(scheduled):
            cut = [index for index, request in enumerate(scheduled) if not request.samples]
            sound = logits[to_device(np.array(cut), self._device)].isfinite().all(dim=-1)
            logits = logits[to_device(np.array(sampling, dtype=np.int64), self._device)]
        if not sampling:
            return None, sound
        requests = [scheduled[index] for index in sampling]
        by_row = {index: masks[request.id] for index, request in enumerate(requests) if request.id in masks}
        begun = self._sampler.begin(logits, [sample_row(request) for request in requests], by_row)
        self._last = _Sampled({request.id: index for index, request in enumerate(requests)}, begun.ids)
        return begun, sound

    def _move_pages(self, plan: SchedulePlan) -> float | None:
        """Host copies leave first: the pages they free may be written by what follows.

        Returns the swaps' seconds where they are done by then.
        """
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
        if not swaps or (self._host_pool is not None and self._host_pool.is_asynchronous):
            return None
        return swapping + time.perf_counter() - started

    def _forward(self, scheduled: Sequence[ScheduledRequest], last: _Sampled) -> torch.Tensor:
        """Logits [rows, vocab]: for each request its scored positions, then its last one, sampled or not."""
        metadata = AttentionMetadata.build(
            starts=[request.start for request in scheduled],
            lengths=[len(request.tokens) for request in scheduled],
            page_tables=[request.pages for request in scheduled],
            page_size=self._page_size,
        )
        rows = logits_rows(scheduled, metadata.qo_indptr[1:])
        known = np.concatenate([request.tokens for request in scheduled], dtype=np.int64)
        ids = last.fill_in(scheduled, to_device(known, self._device))
        if self.graphs is not None and len(rows) == len(scheduled):
            logits = self.graphs.run(metadata, ids)
            if logits is not None:
                return logits
        self._backend.plan(metadata)
        return self.model.forward(ids, self._backend, to_device(rows, self._device))
