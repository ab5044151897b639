"""The real wrappers of flashinfer-python with only its compiled modules replaced by torch.

Everything written in Python there runs as it does on a GPU: argument checks, buffers, which kernels are chosen with
which arguments. The stand-ins check what the C++ launchers check of the arrays. Not covered: the planners' partition of
the work, the kernels' arithmetic, streams and graphs.
"""

import importlib
import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

NON_CAUSAL, CAUSAL, CUSTOM = 0, 1, 2


class Emulation:
    """The package under emulation, and what was asked of its modules."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library
        self.modules: set[tuple[Any, ...]] = set()
        self.calls: list[str] = []
        self.current_plans: dict[int, list[int]] = {}
        self.num_plans = 0
        self.addresses: list[int] = []

    def plan(self, kind: str, workspace: torch.Tensor, *facts: int) -> list[int]:
        """A plan lies in its integer workspace until another is written there."""
        self.num_plans += 1
        self.calls.append(f"plan {kind}")
        info = [self.num_plans, *facts]
        self.current_plans[workspace.data_ptr()] = info
        return info

    def ran(self, kind: str, workspace: torch.Tensor, info: list[int]) -> None:
        assert self.current_plans[workspace.data_ptr()] == info, "another plan lies in this workspace"
        self.calls.append(f"run {kind}")


def emulate(patch: pytest.MonkeyPatch) -> Emulation:
    """Replaces the compiled modules while `patch` lasts; skips the test where flashinfer-python is not installed."""
    reason = "flashinfer-python is not installed (make setup does it)"
    emulation = Emulation(pytest.importorskip("flashinfer", reason=reason))
    names = ("prefill", "decode", "cascade", "page", "rope", "norm", "activation", "quantization.packbits")
    parts = {name: importlib.import_module(f"flashinfer.{name}") for name in names}
    for name in ("prefill", "decode"):
        patch.setattr(parts[name], "torch", _UnpinnedTorch())
        patch.setattr(parts[name], "get_batch_prefill_module", _prefill_module(emulation))
        patch.setattr(parts[name], "_get_cache_alibi_slopes_buf", lambda heads, device: torch.zeros(heads))
    patch.setattr(parts["decode"], "get_batch_decode_module", _decode_module(emulation))
    for name in ("prefill", "decode", "norm", "activation"):
        patch.setattr(parts[name], "device_support_pdl", lambda device: False)
    patch.setattr(parts["norm"], "_USE_CUDA_NORM", True)
    stand_ins: dict[str, tuple[str, Any]] = {
        "cascade": ("get_cascade_module", SimpleNamespace(merge_state=_merge_state)),
        "page": ("get_page_module", SimpleNamespace(append_paged_kv_cache=_appending(emulation))),
        "rope": ("get_rope_module", SimpleNamespace(apply_rope_pos_ids_cos_sin_cache=_rope)),
        "norm": ("get_norm_module", SimpleNamespace(rmsnorm=_rmsnorm, fused_add_rmsnorm=_add_rmsnorm)),
        "quantization.packbits": ("get_quantization_module", SimpleNamespace(segment_packbits=_pack)),
    }
    for name, (getter, module) in stand_ins.items():
        patch.setattr(parts[name], getter, lambda module=module: module)
    activation = SimpleNamespace(silu_and_mul=_silu_mul)
    patch.setattr(parts["activation"], "get_act_and_mul_module", lambda name: activation)
    return emulation


class _UnpinnedTorch:
    """torch, but page-locked memory is ordinary: without CUDA there is none to be had."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.empty(*shape, **options)


def _prefill_module(emulation: Emulation) -> Callable[..., SimpleNamespace]:
    def make(backend: str, *types: Any) -> SimpleNamespace:
        q_type, kv_type, o_type, index_type, head_dim, *_ = types
        assert backend == "fa2", "paged attention is pinned to fa2"
        assert q_type == kv_type == o_type
        assert q_type in (torch.float16, torch.bfloat16)
        assert index_type == torch.int32
        assert head_dim in (64, 128, 256)
        emulation.modules.add(("prefill", *types))
        uses_window, uses_cap = types[7], types[8]

        def plan(
            floats: Any, ints: Any, pinned: Any, qo: Any, kv: Any, kv_lens: Any, *rest: Any
        ) -> list[int]:
            rows, batch, heads, kv_heads, _, _, _, _, causal, window = rest[:10]
            for array in (qo, kv, kv_lens):
                _check_index(array)
            assert len(qo) == len(kv) == len(kv_lens) + 1 == batch + 1
            assert heads % kv_heads == 0
            assert int(qo[-1]) <= rows
            assert (window >= 0) == uses_window
            return emulation.plan("prefill", ints, batch, heads, kv_heads, int(causal), window)

        def run(floats: Any, ints: Any, info: list[int], q: Any, k: Any, v: Any, *rest: Any) -> None:
            qo, kv, indices, last, out, lse, mode, layout, window, _, mask, mask_indptr, _ = rest[:13]
            cap, scale = _two(rest)
            emulation.ran("prefill", ints, info)
            emulation.addresses += [array.data_ptr() for array in (ints, qo, kv, indices, last)]
            assert (cap > 0) == uses_cap
            assert layout == 0
            for array in (qo, kv, indices, last):
                _check_index(array)
            _attend(q, k, v, qo, kv, indices, last, out, lse, mode, window, mask, mask_indptr, cap, scale)

        return SimpleNamespace(plan=plan, paged_run=run)

    return make


def _two(arguments: tuple[Any, ...]) -> tuple[float, float]:
    """Soft cap and scale: the first two floats of a launcher's arguments, in every version so far."""
    cap, scale = [value for value in arguments if isinstance(value, float)][:2]
    return cap, scale


def _decode_module(emulation: Emulation) -> Callable[..., SimpleNamespace]:
    def make(*types: Any) -> SimpleNamespace:
        assert types[0] == types[1] == types[2]
        assert types[0] in (torch.float16, torch.bfloat16)
        emulation.modules.add(("decode", *types))

        def plan(
            floats: Any, ints: Any, pinned: Any, kv: Any, batch: int, heads: int, kv_heads: int, *_: Any
        ) -> Any:
            _check_index(kv)
            assert heads // kv_heads in (1, 2, 3, 4, 8), "no CUDA-core kernel for this group size"
            return emulation.plan("decode", ints, batch)

        def run(floats: Any, ints: Any, info: list[int], q: Any, k: Any, v: Any, *rest: Any) -> None:
            kv, indices, last, out, lse, layout, window = rest[:7]
            cap, scale = _two(rest)
            emulation.ran("decode", ints, info)
            emulation.addresses += [array.data_ptr() for array in (ints, kv, indices, last)]
            assert layout == 0
            for array in (kv, indices, last):
                _check_index(array)
            qo = torch.arange(len(q) + 1)
            _attend(q, k, v, qo, kv, indices, last, out, lse, NON_CAUSAL, window, None, None, cap, scale)

        return SimpleNamespace(plan=plan, run=run)

    return make


def _check_index(array: torch.Tensor) -> None:
    assert array.dtype == torch.int32
    assert array.is_contiguous()


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    last: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    mode: int,
    window: int,
    mask: torch.Tensor | None,
    mask_indptr: torch.Tensor | None,
    cap: float,
    scale: float,
) -> None:
    assert k.stride() == v.stride()
    assert q.stride(-1) == k.stride(-1) == 1
    assert out.is_contiguous()
    page_size, group = k.shape[1], q.shape[1] // k.shape[2]
    for i in range(len(qo) - 1):
        rows = slice(int(qo[i]), int(qo[i + 1]))
        pages = indices[int(kv[i]) : int(kv[i + 1])].long()
        assert 1 <= int(last[i]) <= page_size
        num_keys, num_queries = (len(pages) - 1) * page_size + int(last[i]), rows.stop - rows.start
        keys = k[pages].flatten(0, 1)[:num_keys].float().repeat_interleave(group, 1)
        values = v[pages].flatten(0, 1)[:num_keys].float().repeat_interleave(group, 1)
        logits = torch.einsum("qhd,khd->hqk", q[rows].float(), keys) * scale
        if cap > 0:
            logits = cap * torch.tanh(logits / cap)
        q_pos = torch.arange(num_keys - num_queries, num_keys)[:, None]
        k_pos = torch.arange(num_keys)[None]
        visible = torch.ones(num_queries, num_keys, dtype=torch.bool)
        if mode == CAUSAL:
            visible &= k_pos <= q_pos
        elif mode == CUSTOM:
            assert mask is not None
            assert mask_indptr is not None
            visible &= _unpack(mask[int(mask_indptr[i]) : int(mask_indptr[i + 1])], num_queries, num_keys)
        if window >= 0:
            visible &= k_pos >= q_pos - window
        logits = logits.masked_fill(~visible, -torch.inf)
        out[rows] = torch.einsum("hqk,khd->qhd", logits.softmax(-1), values).to(out.dtype)
        if lse is not None:
            lse[rows] = (logits.logsumexp(-1) / math.log(2)).T


def _unpack(packed: torch.Tensor, num_queries: int, num_keys: int) -> torch.Tensor:
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten()[: num_queries * num_keys].bool().view(num_queries, num_keys)


def _pack(x: torch.Tensor, indptr: torch.Tensor, new: torch.Tensor, order: str, out: torch.Tensor) -> None:
    assert order == "little"
    assert x.dtype == torch.bool
    for i in range(len(indptr) - 1):
        bits = x[int(indptr[i]) : int(indptr[i + 1])]
        padded = torch.zeros(-(-len(bits) // 8) * 8, dtype=torch.int64)
        padded[: len(bits)] = bits
        out[int(new[i]) : int(new[i + 1])] = (padded.view(-1, 8) << torch.arange(8)).sum(-1).to(torch.uint8)


def _merge_state(
    va: torch.Tensor, sa: torch.Tensor, vb: torch.Tensor, sb: torch.Tensor, v: torch.Tensor, s: torch.Tensor
) -> None:
    for tensor in (va, sa, vb, sb):
        assert tensor.is_contiguous()
    assert sa.dtype == sb.dtype == torch.float32
    peak = torch.maximum(sa, sb)
    wa, wb = torch.exp2(sa - peak), torch.exp2(sb - peak)
    v.copy_((wa[..., None] * va.float() + wb[..., None] * vb.float()) / (wa + wb)[..., None])
    s.copy_(peak + torch.log2(wa + wb))


def _appending(emulation: Emulation) -> Callable[..., None]:
    def append(*arguments: Any) -> None:
        emulation.addresses += [array.data_ptr() for array in (*arguments[2:4], *arguments[6:9])]
        _append(*arguments)

    return append


def _append(
    key: torch.Tensor,
    value: torch.Tensor,
    requests: torch.Tensor,
    positions: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    last: torch.Tensor,
    layout: int,
) -> None:
    assert layout == 0
    assert key.stride(-1) == value.stride(-1) == 1
    assert key.dtype == value.dtype == k.dtype
    assert len(indptr) == len(last) + 1
    assert len(requests) == len(positions) == len(key)
    for array in (requests, positions, indices, indptr, last):
        _check_index(array)
    page = indices[(indptr[requests.long()] + positions // k.shape[1]).long()].long()
    k[page, (positions % k.shape[1]).long()] = key
    v[page, (positions % k.shape[1]).long()] = value


def _rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    interleave: bool,
) -> None:
    assert not interleave
    assert table.is_contiguous()
    assert positions.dtype in (torch.int32, torch.int64)
    cos, sin = table[positions.long(), None].chunk(2, -1)
    for x, out in ((q, q_out), (k, k_out)):
        assert x.stride(-1) == 1
        first, second = x.float().chunk(2, -1)
        out.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))


def _rmsnorm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, pdl: bool) -> None:
    assert weight.shape == (x.shape[-1],)
    assert x.ndim in (2, 3)
    assert x.stride(-1) == out.stride(-1) == weight.stride(-1) == 1
    wide = x.float()
    out.copy_(wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float())


def _add_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, pdl: bool
) -> None:
    assert x.ndim == residual.ndim == 2
    assert x.dtype == residual.dtype == weight.dtype
    wide = x.float() + residual.float()
    residual.copy_(wide)
    x.copy_(wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float())


def _silu_mul(out: torch.Tensor, x: torch.Tensor, pdl: bool) -> None:
    assert x.is_contiguous()
    gate, up = x.float().chunk(2, -1)
    out.copy_(torch.nn.functional.silu(gate) * up)
