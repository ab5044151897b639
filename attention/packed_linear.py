"""Linear layers with their weights as they are, packed for the native kernels."""

import torch
from torch.nn import functional as F

from . import native, structs

STRIP = 32  # outputs that lie together: linear.h
_GATED = STRIP // 2
_TILE_COLS = 32  # bfloat16 is multiplied in tiles of sixteen pairs


class NativeLinear:
    """x · weightᵀ + bias on CPUs, natively; with `gated`, silu(gate) · up of a weight [gate | up] (SwiGLU).

    A row's result has the same bits whatever the other rows are. How the weights lie is the subclasses' business.
    """

    def __init__(self, level: str | None, linear: structs.Linear, *kept: torch.Tensor | None) -> None:
        """`linear` points into the tensors that are kept."""
        self._library = native.library(level)
        self._kept = kept
        self.native = linear
        """The layer as the kernels see it; valid as long as this object lives."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in]; returns [rows, out], or [rows, out / 2] where it is gated, in x's dtype."""
        return self._multiply(x.contiguous(), len(x))

    def _multiply(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        out = x.new_empty(rows, self.native.out_features // (2 if self.native.gated else 1))
        self._library.linear(
            structs.LinearJob(
                linear=self.native,
                x=x.data_ptr(),
                out=out.data_ptr(),
                storage=structs.STORAGE[x.dtype],
                rows=rows,
                num_threads=torch.get_num_threads(),
            )
        )
        return out


class PackedLinear(NativeLinear):
    """Weights as they are, in float32 or bfloat16. Sums are float32."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
        level: str | None = None,
    ) -> None:
        """Packs weight [out, in], which can be dropped afterwards; see `fits`."""
        self._dtype = weight.dtype
        packed = pack_strips(gate_by_turns(weight) if gated else weight, STRIP)
        biases = native_bias(bias, gated)
        linear = structs.Linear(
            weight=packed.data_ptr(),
            bias=None if biases is None else biases.data_ptr(),
            in_features=weight.shape[1],
            out_features=weight.shape[0],
            words=weight.shape[1] * weight.dtype.itemsize // 4,
            kind=structs.DENSE,
            gated=gated,
        )
        super().__init__(level, linear, packed, biases)

    @staticmethod
    def fits(weight: torch.Tensor, gated: bool = False) -> bool:
        """Whether the kernels take this weight, here."""
        rows, cols = weight.shape
        whole = weight.dtype == torch.float32 or cols % _TILE_COLS == 0
        whole &= not gated or rows % STRIP == 0
        return weight.device.type == "cpu" and native.supports(weight.dtype) and whole

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See NativeLinear; x has the weight's dtype."""
        assert x.dtype == self._dtype, f"{x.dtype} given to a weight of {self._dtype}"
        return self._multiply(whole_tiles(x), len(x))


def whole_tiles(x: torch.Tensor) -> torch.Tensor:
    """x [rows, ...], contiguous, with rows of zeros up to a multiple of the sixteen that a tile reads."""
    return x.contiguous() if len(x) % 16 == 0 else F.pad(x, (0, 0, 0, -len(x) % 16))


def native_bias(bias: torch.Tensor | None, gated: bool) -> torch.Tensor | None:
    """A bias [out] as the kernels read it."""
    return None if bias is None else (gate_by_turns(bias) if gated else bias).float()


def gate_by_turns(weight: torch.Tensor) -> torch.Tensor:
    """The rows of [gate | up] in turns of sixteen: a strip has sixteen of each."""
    return weight.view(2, -1, _GATED, *weight.shape[1:]).transpose(0, 1).reshape(weight.shape)


def pack_strips(weight: torch.Tensor, strip: int) -> torch.Tensor:
    """weight [out, in] as [out / strip, in / words, strip, elements of a word], padded with zeros."""
    per_word = 4 // weight.dtype.itemsize
    rows, cols = weight.shape
    padded = F.pad(weight, (0, 0, 0, -rows % strip)) if rows % strip else weight
    return padded.view(-1, strip, cols // per_word, per_word).transpose(1, 2).contiguous()
