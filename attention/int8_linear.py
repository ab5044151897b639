"""Linear layers with int8 weights on CPUs: natively, else with torch."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from . import native, structs
from .fused import silu_mul
from .packed_linear import STRIP, NativeLinear, gate_by_turns, native_bias, pack_strips

_TILE_COLS = 64  # whole tiles of four bytes a word


def int8_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, gated: bool = False
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The fastest product of a weight [out, in] in int8 that runs here for x of this dtype.

    With `gated` it is silu(gate) · up of a weight [gate | up].
    """
    if native.supports(dtype) and (not gated or len(weight) % STRIP == 0):
        return Int8Linear(weight, bias, gated=gated)
    product = (Int8Linear if native.supports(dtype) else TorchInt8Linear)(weight, bias)
    return (lambda x: silu_mul(product(x))) if gated else product


class Int8Linear(NativeLinear):
    """Int8 weights with one scale per output, and x quantised to int8 row by row.

    Products and sums are whole numbers: they are the same at every level and for every batch size. As W8A8 of
    LLM.int8() (Dettmers et al., 2022), without outliers.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
        level: str | None = None,
    ) -> None:
        """Quantises and packs weight [out, in] of any float dtype, out a multiple of STRIP where it is gated."""
        rounded, scale = _quantized(gate_by_turns(weight) if gated else weight)
        sums = rounded.sum(1, dtype=torch.int32).mul_(128)
        packed = pack_strips(F.pad(rounded, (0, -weight.shape[1] % _TILE_COLS)), STRIP)
        biases = native_bias(bias, gated)
        linear = structs.Linear(
            weight=packed.data_ptr(),
            scale=scale.data_ptr(),
            sum=sums.data_ptr(),
            bias=None if biases is None else biases.data_ptr(),
            in_features=weight.shape[1],
            out_features=weight.shape[0],
            words=packed.shape[1],
            kind=structs.INT8,
            gated=gated,
        )
        super().__init__(level, linear, packed, scale, sums, biases)


class TorchInt8Linear:
    """What Int8Linear computes, for x of any float dtype, with torch's product of whole numbers."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Quantises weight [out, in] of any float dtype."""
        self._weight, self._scale = _quantized(weight)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in]; returns [rows, out] in x's dtype."""
        wide = x.float()
        row_scale = wide.abs().amax(1, keepdim=True) / 127.0
        inverse = torch.where(row_scale > 0.0, 1.0 / row_scale, 0.0)
        # What is not finite has no whole number: its row's scale, NaN, makes the whole row NaN.
        rounded = (wide * inverse).nan_to_num_().round_().to(torch.int8)
        sums = torch._int_mm(rounded, self._weight.t()).float()
        out = sums * ((row_scale + 0.0 * row_scale) * self._scale)
        return (out if self._bias is None else out + self._bias).to(x.dtype)


def _quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [out, in] as int8, and the scale of each output, which makes its largest weight 127."""
    wide = weight.float()
    scale = (wide.abs().amax(1) / 127.0).contiguous()
    return (wide / scale.clamp(min=1e-30)[:, None]).round_().to(torch.int8), scale
