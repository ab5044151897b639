"""Memory-bound steps between the matrix products, each in one pass: natively on CPUs, else with torch."""

import torch
from torch.nn import functional as F

from . import native, structs


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) · weight for rows x [rows, cols], in float32 inside (Zhang & Sennrich, 2019)."""
    if not _is_native(x):
        return rms_norm_torch(x, weight, eps)
    return _native_norm(x, None, weight, eps)


def rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`rms_norm` over the last dimension of x of any shape, on any device."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds x to `residual` in place, both [rows, cols], and returns the RMSNorm of the sum."""
    if not _is_native(x):
        residual += x
        return rms_norm(residual, weight, eps)
    return _native_norm(x, residual, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of rows [gate | up] [rows, 2 cols]; returns [rows, cols] (SwiGLU; Shazeer, 2020)."""
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


def _is_native(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in structs.STORAGE and native.unavailable() is None


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
