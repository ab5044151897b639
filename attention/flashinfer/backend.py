"""Attention on CUDA GPUs with FlashInfer's kernels."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from trunkline.attention import fused
from trunkline.attention.base import check_metadata, check_pool
from trunkline.attention.config import AttentionConfig
from trunkline.attention.kv_pool import KVPool
from trunkline.attention.metadata import AttentionMetadata
from trunkline.attention.streams import Streams, streams_of
from trunkline.errors import ConfigError

from .cascade import CascadeRule
from .library import load, unsupported
from .ops import FusedOps
from .problem import Problem, cut, padded
from .staging import Staged, Staging
from .wrappers import WORKSPACE_BYTES, Decode, GraphMemory, KeysValues, Prefill, Setting, Wrapper

# Pages that the index buffers of CUDA graphs have room for: so many times the pool, since requests share pages.
_SHARING = 4


class FlashInferBackend:
    """One causal paged path for all steps that compute more than one token somewhere, one for decodes.

    A step is planned once; each layer runs the wrapper of its window. A prefix that all requests of a step
    share is read once for all of them where `cascade` says that this pays. Decodes can also be planned for
    a CUDA graph of a given number of rows (see `plan_padded`).
    """

    def __init__(
        self,
        config: AttentionConfig,
        pool: KVPool,
        *,
        library: Any = None,
        streams: Streams | None = None,
        cascade: CascadeRule | None = None,
    ) -> None:
        """Binds to a pool of bfloat16 or float16 on a CUDA device.

        Raises ConfigError in one line: no GPU, no FlashInfer, or a dtype or head size without kernels. `library` is a
        stand-in for the package, for tests.
        """
        check_pool(config, pool)
        if library is None:
            library = load(config, pool.dtype, pool.device)
        elif (reason := unsupported(config, pool.dtype)) is not None:
            raise ConfigError(f"attention: {reason}")
        streams = streams or streams_of(pool.device)
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=pool.device)
        self._config = config
        self._pool = pool
        self._library = library
        self._setting = Setting(library, config, pool.dtype, streams, workspace)
        self._cascade = cascade or CascadeRule()
        self._staging = Staging(pool.device, streams)
        self._ops = FusedOps(library)
        if pool.device.type == "cuda":
            fused.use_on_cuda(self._ops)
        self._made: dict[Hashable, Any] = {}
        self._memory: dict[str, GraphMemory] = {}
        self._graph_positions = torch.empty(0, dtype=torch.int32, device=pool.device)
        self._graph_requests = self._graph_positions
        self._step: _Step | None = None

    def plan(self, metadata: AttentionMetadata) -> None:
        """See AttentionBackend."""
        check_metadata(metadata, self._pool)
        problem = Problem.of(metadata)
        self._staging.begin()
        requests = np.repeat(np.arange(problem.num_requests, dtype=np.int32), metadata.q_lens)
        _, (positions, rows) = self._staging.copy([metadata.positions.astype(np.int32), requests])
        whole = self._staging.stage(problem)
        plans: dict[int | None, _Attend]
        if metadata.mask is not None:
            mask = torch.from_numpy(metadata.mask).to(self._pool.device)
            plans = {window: self._masked(whole, window, mask) for window in self._config.windows}
        else:
            plans = {window: self._plain(whole, window) for window in self._config.windows - {None}}
            if None in self._config.windows:
                num_pages = self._cascade.pages(self._config, self._pool.dtype.itemsize, metadata)
                plans[None] = self._cascaded(problem, num_pages) if num_pages else self._plain(whole, None)
        self._staging.end()
        self._step = _Step(
            plans,
            positions,
            rows,
            whole.device_kv_indices,
            whole.device_kv_indptr,
            whole.device_last_page_len,
        )

    def reserve_rows(self, num_rows: int) -> None:
        """See CapturableBackend."""
        device = self._pool.device
        self._graph_positions = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._graph_requests = torch.arange(num_rows, dtype=torch.int32, device=device)
        num_indices = _SHARING * self._pool.num_pages + num_rows
        self._memory = {
            "whole": GraphMemory.empty(num_rows, num_indices, device),
            "rest": GraphMemory.empty(num_rows, num_indices, device),
            "prefix": GraphMemory.empty(1, self._pool.num_pages, device),
        }

    def plan_padded(self, metadata: AttentionMetadata, num_rows: int) -> Hashable | None:
        """See CapturableBackend."""
        check_metadata(metadata, self._pool)
        problem = padded(Problem.of(metadata), num_rows)
        one_each = metadata.num_tokens == metadata.num_requests
        if not one_each or metadata.mask is not None or not self._memory["whole"].holds(problem):
            return None
        self._staging.begin()
        _, (positions,) = self._staging.copy([_padded_positions(metadata, num_rows)])
        self._graph_positions[:num_rows].copy_(positions, non_blocking=True)
        whole = self._staging.stage(problem)
        inputs = self._memory["whole"].first(num_rows)
        inputs.fill(whole)
        plans: dict[int | None, _Attend] = {}
        num_pages = 0
        for window in self._config.windows:
            if window is None:
                num_pages = self._cascade.pages(self._config, self._pool.dtype.itemsize, metadata)
            if window is None and num_pages:
                plans[window] = self._cascaded_graph(metadata, num_pages, num_rows)
            else:
                plans[window] = self._graph("whole", whole, window, num_rows)
        self._staging.end()
        self._step = _Step(
            plans,
            self._graph_positions[:num_rows],
            self._graph_requests[:num_rows],
            inputs.kv_indices,
            inputs.kv_indptr,
            inputs.last_page_len,
        )
        return num_rows, bool(num_pages)

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See AttentionBackend. Rows may be strided, the last dimension may not."""
        step = self._step
        assert step is not None, "forward before plan"
        self._pool.await_layer(layer)
        pool = self._pool.k[layer], self._pool.v[layer]
        self._library.append_paged_kv_cache(
            k, v, step.requests, step.positions, pool, step.kv_indices, step.kv_indptr, step.last_page_len
        )
        return step.plans[self._config.window(layer)].run(q, pool)

    def forward_fused(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm_weight: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """See AttentionBackend. Queries and keys are normalised and rotated where they lie."""
        assert self._step is not None, "forward before plan"
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        if norm_weight is not None:
            self._ops.norm_heads(qkv, heads, norm_weight, norm_eps)
        self._ops.rotate(qkv, heads, kv_heads, self._step.positions, cos, sin)
        return self.forward(
            layer, qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        )

    def _plain(self, staged: Staged, window: int | None) -> "_Attend":
        if staged.problem.max_q_len == 1:
            wrapper: Wrapper = self._once(("decode", window), lambda: Decode(self._setting, window))
        else:
            wrapper = self._once(("prefill", window), lambda: Prefill(self._setting, window))
        wrapper.plan(staged)
        return _Attend(self._library, wrapper)

    def _masked(self, staged: Staged, window: int | None, mask: torch.Tensor) -> "_Attend":
        # A wrapper of its own: whether it has a mask decides which kernels a wrapper runs.
        wrapper = self._once(("masked", window), lambda: Prefill(self._setting, window, causal=False))
        wrapper.plan(staged, mask)
        return _Attend(self._library, wrapper)

    def _cascaded(self, problem: Problem, num_pages: int) -> "_Attend":
        shared, own = (self._staging.stage(part) for part in cut(problem, num_pages))
        prefix = self._once("prefix", lambda: Prefill(self._setting, None, causal=False))
        rest = self._once("rest", lambda: Prefill(self._setting, None))
        prefix.plan(shared)
        rest.plan(own)
        return _Attend(self._library, rest, prefix)

    def _graph(self, role: str, staged: Staged, window: int | None, num_rows: int) -> "_Attend":
        wrapper = self._once(
            (role, window, num_rows),
            lambda: Decode(self._setting, window, self._graph_memory(role, window).first(num_rows)),
        )
        wrapper.plan(staged)
        return _Attend(self._library, wrapper)

    def _cascaded_graph(self, metadata: AttentionMetadata, num_pages: int, num_rows: int) -> "_Attend":
        """Padding rows attend to the shared prefix too, and then to page 0."""
        prefix_of_own, own = cut(Problem.of(metadata), num_pages)
        shared = replace(prefix_of_own, qo_indptr=np.array([0, num_rows], np.int32))
        prefix = self._once(
            ("prefix", num_rows),
            lambda: Prefill(self._setting, None, causal=False, memory=self._graph_memory("prefix", None)),
        )
        prefix.plan(self._staging.stage(shared))
        rest = self._graph("rest", self._staging.stage(padded(own, num_rows)), None, num_rows)
        return _Attend(self._library, rest.wrapper, prefix)

    def _graph_memory(self, role: str, window: int | None) -> GraphMemory:
        memory: GraphMemory = self._once(
            ("memory", role, window), lambda: self._memory[role].with_workspace()
        )
        return memory

    def _once(self, key: Hashable, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


@dataclass(frozen=True, slots=True, eq=False)
class _Attend:
    """What the layers of one window run in a step: one wrapper, or two whose results are merged."""

    library: Any
    wrapper: Wrapper
    prefix: Wrapper | None = None

    def run(self, q: torch.Tensor, pool: KeysValues) -> torch.Tensor:
        """Attention of q [tokens, heads, head_dim] to the planned pages of one layer."""
        if self.prefix is None:
            return self.wrapper.run(q, pool)[0]
        merged: torch.Tensor
        merged, _ = self.library.merge_state(
            *self.prefix.run(q, pool, with_lse=True), *self.wrapper.run(q, pool, with_lse=True)
        )
        return merged


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A planned step: what each window runs, and where its new keys go (int32, on the device)."""

    plans: dict[int | None, _Attend]
    positions: torch.Tensor
    requests: torch.Tensor
    kv_indices: torch.Tensor
    kv_indptr: torch.Tensor
    last_page_len: torch.Tensor


def _padded_positions(metadata: AttentionMetadata, num_rows: int) -> np.ndarray:
    positions = np.zeros(num_rows, np.int32)
    positions[: metadata.num_tokens] = metadata.positions
    return positions
