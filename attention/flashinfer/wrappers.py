"""FlashInfer's wrappers behind one face: planned once per step, run once per layer."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from trunkline.attention.config import AttentionConfig
from trunkline.attention.streams import Streams

from .library import use_tensor_cores
from .problem import Problem
from .staging import Staged

# Shared by all wrappers: partial results of split keys. 256 heads of 128 at batch 128 still fit.
WORKSPACE_BYTES = 256 << 20
INT_WORKSPACE_BYTES = 8 << 20
LAYOUT = "NHD"
# Pinned: "auto" may pick kernels that lack windows, caps or masks, and another one for each step.
BACKEND = "fa2"

KeysValues = tuple[torch.Tensor, torch.Tensor]
Result = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What the wrappers of one backend have in common."""

    library: Any
    config: AttentionConfig
    dtype: torch.dtype
    streams: Streams
    workspace: torch.Tensor

    def options(self, window: int | None) -> dict[str, Any]:
        """Keywords of every `plan`. FlashInfer counts the keys left of a query, we the query too."""
        return {
            "sm_scale": self.config.scale,
            "window_left": -1 if window is None else window - 1,
            "logits_soft_cap": self.config.logits_soft_cap or 0.0,
            "q_data_type": self.dtype,
            "kv_data_type": self.dtype,
        }

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Positional arguments of every `plan`, after the index arrays."""
        config = self.config
        return config.num_heads, config.num_kv_heads, config.head_dim, config.page_size


class Wrapper(Protocol):
    """Attention to the pages of one planned problem."""

    def plan(self, staged: Staged) -> None:
        """Takes a step's problem."""

    def run(self, q: torch.Tensor, pool: KeysValues, with_lse: bool = False) -> Result:
        """The answer, shaped as q [tokens, heads, head_dim], and the log2 of each sum of weights [tokens, heads]."""


class Guard:
    """`plan` writes a wrapper's page-locked workspace, which the device copies later: the last copy must be done."""

    def __init__(self, streams: Streams) -> None:
        self._event = streams.event()

    def __enter__(self) -> None:
        self._event.synchronize()

    def __exit__(self, *_: object) -> None:
        self._event.record()


class Prefill:
    """Any number of queries a request: causal, or with the mask of the step, or to a prefix that all of it is past."""

    def __init__(
        self,
        setting: Setting,
        window: int | None,
        *,
        causal: bool = True,
        memory: "GraphMemory | None" = None,
    ) -> None:
        self._setting = setting
        self._options = setting.options(window) | {"causal": causal}
        self._guard = Guard(setting.streams)
        graph: dict[str, Any] = {}
        if memory is not None:
            graph = {
                "use_cuda_graph": True,
                "qo_indptr_buf": memory.qo_indptr,
                "paged_kv_indptr_buf": memory.kv_indptr,
                "paged_kv_indices_buf": memory.kv_indices,
                "paged_kv_last_page_len_buf": memory.last_page_len,
            }
        self._wrapper = setting.library.BatchPrefillWithPagedKVCacheWrapper(
            setting.workspace, LAYOUT, backend=BACKEND, **graph
        )
        if memory is not None:
            self._wrapper.reset_workspace_buffer(setting.workspace, memory.int_workspace)

    def plan(self, staged: Staged, mask: torch.Tensor | None = None) -> None:
        """See Wrapper. `mask`: bool on the device; causality is then the mask's own business."""
        with self._guard:
            if mask is None:
                indptrs = staged.qo_indptr, staged.kv_indptr, staged.device_kv_indices, staged.last_page_len
            else:
                # Up to 0.6 the mask is packed where qo_indptr lies, by a kernel: on the device. `plan` then waits for
                # its copies of the arrays, which it does for no other step.
                indptrs = (
                    staged.device_qo_indptr,
                    staged.device_kv_indptr,
                    staged.device_kv_indices,
                    staged.device_last_page_len,
                )
            self._wrapper.plan(
                *indptrs,
                *self._setting.shape,
                custom_mask=mask,
                seq_lens=staged.kv_lens,
                max_token_per_sequence=staged.problem.max_q_len,
                **self._options,
            )

    def run(self, q: torch.Tensor, pool: KeysValues, with_lse: bool = False) -> Result:
        """See Wrapper."""
        return _run(self._wrapper, q, pool, with_lse)


class Decode:
    """One query a request."""

    def __init__(self, setting: Setting, window: int | None, memory: "GraphMemory | None" = None) -> None:
        self._setting = setting
        self._options = setting.options(window)
        self._guard = Guard(setting.streams)
        graph: dict[str, Any] = {}
        if memory is not None:
            graph = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": memory.kv_indptr,
                "paged_kv_indices_buffer": memory.kv_indices,
                "paged_kv_last_page_len_buffer": memory.last_page_len,
            }
        self._wrapper = setting.library.BatchDecodeWithPagedKVCacheWrapper(
            setting.workspace,
            LAYOUT,
            use_tensor_cores=use_tensor_cores(setting.config.group_size),
            backend=BACKEND,
            **graph,
        )
        if memory is not None:
            self._wrapper.reset_workspace_buffer(setting.workspace, memory.int_workspace)

    def plan(self, staged: Staged) -> None:
        """See Wrapper."""
        with self._guard:
            self._wrapper.plan(
                staged.kv_indptr,
                staged.device_kv_indices,
                staged.last_page_len,
                *self._setting.shape,
                seq_lens=staged.kv_lens,
                **self._options,
            )

    def run(self, q: torch.Tensor, pool: KeysValues, with_lse: bool = False) -> Result:
        """See Wrapper."""
        return _run(self._wrapper, q, pool, with_lse)


def _run(wrapper: Any, q: torch.Tensor, pool: KeysValues, with_lse: bool) -> Result:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    found = wrapper.run(q, pool, out=out, return_lse=with_lse)
    return found if with_lse else (found, None)


@dataclass(frozen=True, slots=True, eq=False)
class GraphMemory:
    """Where the kernels of a CUDA graph find a problem, at addresses that never change.

    Graphs of all sizes use the front of the same arrays, `first`, and the same `int_workspace`: each is planned anew
    right before it is replayed. Windows share the arrays; as all of them are planned before any runs, each
    has its own workspace (`with_workspace`).
    """

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor
    int_workspace: torch.Tensor

    @classmethod
    def empty(cls, num_rows: int, num_indices: int, device: torch.device) -> "GraphMemory":
        """For up to num_rows requests with num_indices pages together; without a workspace yet."""

        def entries(count: int) -> torch.Tensor:
            return torch.empty(count, dtype=torch.int32, device=device)

        return cls(
            entries(num_rows + 1), entries(num_rows + 1), entries(num_indices), entries(num_rows), entries(0)
        )

    def with_workspace(self) -> "GraphMemory":
        """The same arrays beside a workspace of their own."""
        workspace = torch.empty(INT_WORKSPACE_BYTES, dtype=torch.uint8, device=self.kv_indptr.device)
        return replace(self, int_workspace=workspace)

    def first(self, num_rows: int) -> "GraphMemory":
        """The memory of a graph of exactly num_rows requests."""
        return replace(
            self,
            qo_indptr=self.qo_indptr[: num_rows + 1],
            kv_indptr=self.kv_indptr[: num_rows + 1],
            last_page_len=self.last_page_len[:num_rows],
        )

    def holds(self, problem: Problem) -> bool:
        """Whether there is room for its pages."""
        return len(problem.kv_indices) <= len(self.kv_indices)

    def fill(self, staged: Staged) -> None:
        """Copies a problem in, on the device."""
        self.kv_indptr.copy_(staged.device_kv_indptr, non_blocking=True)
        self.last_page_len.copy_(staged.device_last_page_len, non_blocking=True)
        self.kv_indices[: len(staged.device_kv_indices)].copy_(staged.device_kv_indices, non_blocking=True)
