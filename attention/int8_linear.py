"""Linear layers with int8 weights on CPUs: natively, else with torch."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from . import native, structs

_WORD_BYTES, _TILE_WORDS = 4, 16


def int8_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The faster of the two layers below that runs here, for x of this dtype."""
    return (Int8Linear if native.supports(dtype) else TorchInt8Linear)(weight, bias)


class Int8Linear:
    """x · weightᵀ + bias with int8 weights, one scale per output, and x quantised to int8 row by row.

    Products and sums are whole numbers: results are the same at every level and for every batch size.
    Weights are kept packed, one byte each. As W8A8 of LLM.int8() (Dettmers et al., 2022), without outliers.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, level: str | None = None
    ) -> None:
        """Quantises and packs weight [out, in] of any float dtype; raises NativeUnavailable."""
        self._library = native.library(level)
        self.out_features, self.in_features = weight.shape
        rounded, self._scale = _quantized(weight)
        self._sum = rounded.sum(1, dtype=torch.int32).mul_(128)
        self._words = -(-self.in_features // (_WORD_BYTES * _TILE_WORDS)) * _TILE_WORDS
        strips = -(-self.out_features // self._library.strip)
        rows, cols = strips * self._library.strip, self._words * _WORD_BYTES
        padded = F.pad(rounded, (0, cols - self.in_features, 0, rows - self.out_features))
        blocks = padded.view(strips, self._library.strip, self._words, _WORD_BYTES)
        self._weight = blocks.transpose(1, 2).contiguous()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] of float32 or bfloat16; returns [rows, out] in x's dtype."""
        x = x if x.stride(1) == 1 else x.contiguous()
        rows = len(x)
        out = torch.empty(rows, self.out_features, dtype=x.dtype)
        # Tiles read sixteen rows at a time.
        quantised = torch.empty((rows + 15) // 16 * 16, self._words * _WORD_BYTES, dtype=torch.uint8)
        row_scale = torch.empty(rows)
        self._library.int8_linear(
            structs.Int8Linear(
                x=x.data_ptr(),
                weight=self._weight.data_ptr(),
                weight_scale=self._scale.data_ptr(),
                weight_sum=self._sum.data_ptr(),
                bias=None if self._bias is None else self._bias.data_ptr(),
                out=out.data_ptr(),
                bytes=quantised.data_ptr(),
                row_scale=row_scale.data_ptr(),
                x_stride=x.stride(0),
                rows=rows,
                in_features=self.in_features,
                words=self._words,
                out_features=self.out_features,
                storage=structs.STORAGE[x.dtype],
                num_threads=torch.get_num_threads(),
            )
        )
        return out


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
