"""Linear layers with their weights as they are, packed for the native kernels."""

import torch
from torch.nn import functional as F

from . import native, structs

STRIP = 32  # outputs that lie together: linear.h
_GATED = STRIP // 2
_TILE_COLS = 32  # bfloat16 is multiplied in tiles of sixteen pairs


class PackedLinear:
    """x · weightᵀ + bias on CPUs, natively; with `gated`, silu(gate) · up of a weight [gate | up] (SwiGLU).

    A row's result has the same bits whatever the other rows are. Sums are float32.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
        level: str | None = None,
    ) -> None:
        """Packs weight [out, in] of float32 or bfloat16, which can be dropped afterwards; see `fits`."""
        self._library = native.library(level)
        self.out_features, self.in_features = weight.shape
        self.gated = gated
        self.dtype = weight.dtype
        self._weight = pack_strips(gate_by_turns(weight) if gated else weight, STRIP)
        self._bias = None
        if bias is not None:
            self._bias = (gate_by_turns(bias) if gated else bias).float()

    @staticmethod
    def fits(weight: torch.Tensor, gated: bool = False) -> bool:
        """Whether the kernels take this weight, here."""
        rows, cols = weight.shape
        whole = weight.dtype == torch.float32 or cols % _TILE_COLS == 0
        whole &= not gated or rows % STRIP == 0
        return weight.device.type == "cpu" and native.supports(weight.dtype) and whole

    @property
    def native(self) -> structs.Linear:
        """The layer as the kernels see it; valid as long as this object lives."""
        return structs.Linear(
            weight=self._weight.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            in_features=self.in_features,
            out_features=self.out_features,
            words=self.in_features * self.dtype.itemsize // 4,
            kind=0,
            gated=self.gated,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] of the weight's dtype; returns [rows, out], or [rows, out / 2] where it is gated."""
        assert x.dtype == self.dtype, f"{x.dtype} given to a weight of {self.dtype}"
        rows = len(x)
        # Tiles read sixteen rows at a time.
        padded = x.contiguous() if rows % 16 == 0 else F.pad(x, (0, 0, 0, -rows % 16))
        out = x.new_empty(rows, self.out_features // (2 if self.gated else 1))
        self._library.linear(
            structs.LinearJob(
                linear=self.native,
                x=padded.data_ptr(),
                out=out.data_ptr(),
                storage=structs.STORAGE[x.dtype],
                rows=rows,
                num_threads=torch.get_num_threads(),
            )
        )
        return out


def gate_by_turns(weight: torch.Tensor) -> torch.Tensor:
    """The rows of [gate | up] in turns of sixteen: a strip has sixteen of each."""
    return weight.view(2, -1, _GATED, *weight.shape[1:]).transpose(0, 1).reshape(weight.shape)


def pack_strips(weight: torch.Tensor, strip: int) -> torch.Tensor:
    """weight [out, in] as [out / strip, in / words, strip, elements of a word], padded with zeros."""
    per_word = 4 // weight.dtype.itemsize
    rows, cols = weight.shape
    padded = F.pad(weight, (0, 0, 0, -rows % strip)) if rows % strip else weight
    return padded.view(-1, strip, cols // per_word, per_word).transpose(1, 2).contiguous()
