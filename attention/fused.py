"""Memory-bound steps between the matrix products, each in one pass: with the device's own kernels, else with torch."""

from typing import Protocol

import torch
from torch.nn import functional as F

from . import native, structs


class Kernels(Protocol):
    """A library's kernels for these steps on CUDA devices, bfloat16 and float16."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See rms_norm."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See add_rms_norm."""

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See silu_mul."""


_on_cuda: list[Kernels] = []


def use_on_cuda(kernels: Kernels) -> None:
    """From now on these run the steps on CUDA devices; the attention backend that brings them calls this."""
    _on_cuda[:] = [kernels]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) · weight for rows x [rows, cols], in float32 inside (Zhang & Sennrich, 2019)."""
    if (kernels := _kernels(x)) is not None:
        return kernels.rms_norm(x, weight, eps)
    if not _is_native(x):
        return rms_norm_torch(x, weight, eps)
    return _native_norm(x, None, weight, eps)


def rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`rms_norm` over the last dimension of x of any shape, on any device."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds x to `residual` in place, both [rows, cols], and returns the RMSNorm of the sum; x may be overwritten."""
    if (kernels := _kernels(x)) is not None:
        return kernels.add_rms_norm(x, residual, weight, eps)
    if not _is_native(x):
        residual += x
        return rms_norm(residual, weight, eps)
    return _native_norm(x, residual, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of rows [gate | up] [rows, 2 cols]; returns [rows, cols] (SwiGLU; Shazeer, 2020)."""
    if (kernels := _kernels(gate_up)) is not None:
        return kernels.silu_mul(gate_up)
    rows, cols = len(gate_up), gate_up.shape[1] // 2
    if not _is_native(gate_up):
        return F.silu(gate_up[:, :cols]) * gate_up[:, cols:]
    gate_up = _dense_rows(gate_up)
    out = gate_up.new_empty(rows, cols)
    native.library().silu_mul(
        structs.SiluMul(
            gate_up=gate_up.data_ptr(),
            out=out.data_ptr(),
            stride=gate_up.stride(0),
            rows=rows,
            cols=cols,
            storage=structs.STORAGE[gate_up.dtype],
            num_threads=torch.get_num_threads(),
        )
    )
    return out


def _native_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    x = _dense_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype)
    assert weight.dtype == x.dtype, f"weight of {weight.dtype} for {x.dtype}"
    assert residual is None or (residual.stride(1) == 1 and residual.dtype == x.dtype)
    native.library().norm(
        structs.Norm(
            x=x.data_ptr(),
            residual=None if residual is None else residual.data_ptr(),
            weight=weight.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            residual_stride=0 if residual is None else residual.stride(0),
            rows=len(x),
            cols=x.shape[1],
            eps=eps,
            storage=structs.STORAGE[x.dtype],
            num_threads=torch.get_num_threads(),
        )
    )
    return out


def _kernels(x: torch.Tensor) -> Kernels | None:
    # A launch of no rows would fail.
    half = x.dtype in (torch.bfloat16, torch.float16)
    return _on_cuda[0] if _on_cuda and x.is_cuda and half and x.numel() else None


def _is_native(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in structs.STORAGE and native.unavailable() is None


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
