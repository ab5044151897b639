"""Decode steps replayed as CUDA graphs: the launches of a whole forward pass cost the host one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
import torch

from trunkline.attention import AttentionMetadata, KVPool
from trunkline.attention.base import CapturableBackend
from trunkline.runtime.models import CausalLM

__all__ = ["CudaRecorder", "DecodeGraphs", "Recorder", "Replay", "graph_sizes"]

Replay = Callable[[], None]


class Recorder(Protocol):
    """Turns work on tensors into something that can be repeated on the same memory."""

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        """Does `work`; returns its result, and what does it again: from the same inputs' memory, into that result."""


class CudaRecorder:
    """CUDA graphs that share one memory pool, for they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda
        self._device = device
        self._pool: Any = None

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        """See Recorder."""
        # What a first run does besides (compiling kernels, making handles) must not be part of a graph.
        stream, current = self._cuda.Stream(self._device), self._cuda.current_stream(self._device)
        stream.wait_stream(current)
        with self._cuda.stream(stream):
            work()
        current.wait_stream(stream)
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, pool=self._pool):
            result = work()
        self._pool = graph.pool()
        graph.replay()
        return result, graph.replay


class DecodeGraphs:
    """One graph of a model's forward pass for each number of rows of a ladder (and kind of attention).

    A step of decodes takes the next larger size; its missing rows are padding that no other row sees. Graphs are
    recorded when they are first needed, or all by `warm_up`.
    """

    def __init__(
        self, model: CausalLM, backend: CapturableBackend, kv_pool: KVPool, max_rows: int, recorder: Recorder
    ) -> None:
        self._model = model
        self._backend = backend
        self._kv_pool = kv_pool
        self._recorder = recorder
        self._sizes = graph_sizes(max_rows)
        self._graphs: dict[Hashable, tuple[torch.Tensor, Replay]] = {}
        self._token_ids = torch.zeros(max_rows, dtype=torch.int64, device=model.device)
        self._rows = torch.arange(max_rows, device=model.device)
        backend.reserve_rows(max_rows)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Records the graph of every size, the largest first: the others then fit into its memory."""
        nothing = AttentionMetadata.build([], [], [], self._kv_pool.page_size)
        for size in reversed(self._sizes):
            self._replayed(nothing, size)

    @torch.inference_mode()
    def run(self, metadata: AttentionMetadata, token_ids: torch.Tensor) -> torch.Tensor | None:
        """Plans and computes a step; logits float32 [n, vocab] of its n tokens, int64 [n] on the device.

        None, and nothing is done, where the step is no batch of decodes or fits no graph.
        """
        num_rows = metadata.num_tokens
        if num_rows != metadata.num_requests or num_rows > self._sizes[-1]:
            return None
        size = self._sizes[int(np.searchsorted(self._sizes, num_rows))]
        self._token_ids[:num_rows].copy_(token_ids, non_blocking=True)
        logits = self._replayed(metadata, size)
        # A copy: the next replay may come before the host has looked at these.
        return None if logits is None else logits[:num_rows].clone()

    def _replayed(self, metadata: AttentionMetadata, size: int) -> torch.Tensor | None:
        key = self._backend.plan_padded(metadata, size)
        if key is None:
            return None
        # Waits for single layers are no part of a graph.
        self._kv_pool.await_layers()
        if key not in self._graphs:
            self._graphs[key] = self._recorder.record(
                lambda: self._model.forward(self._token_ids[:size], self._backend, self._rows[:size])
            )
        else:
            self._graphs[key][1]()
        return self._graphs[key][0]


def graph_sizes(max_rows: int) -> list[int]:
    """Ascending sizes up to max_rows that leave no step more than a quarter of padding, or seven rows."""
    sizes, size = [], 1
    while size < max_rows:
        sizes.append(size)
        size = 2 * size if size < 8 else size + max(8, 1 << (size.bit_length() - 3))
    return [*sizes, max_rows]
