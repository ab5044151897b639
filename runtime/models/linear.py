"""Matrix products with weights, in the form that the settings and this machine ask for."""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from trunkline.attention import native
from trunkline.attention.block_linear import BlockLinear
from trunkline.attention.fused import silu_mul
from trunkline.attention.int8_linear import int8_linear
from trunkline.attention.packed_linear import NativeLinear, PackedLinear
from trunkline.attention.structs import STORAGE
from trunkline.errors import ConfigError

from .block_weights import Weight, block_linear, dense

QUANTIZATIONS = ("int8", "gguf")

Product = Callable[[torch.Tensor], torch.Tensor]
"""x [tokens, in] to x · weightᵀ + bias [tokens, out], in x's dtype."""

Form = Callable[[Sequence[Weight], torch.Tensor | None, bool], Product]
"""Makes a product of a weight, whose parts [some of out, in] come as the checkpoint has them, and a bias [out].

Where the last argument says that it is gated, the parts are gate and up, and the product ends in silu(gate) · up.
"""

# One packing serves every batch size: oneDNN's layout for this many rows was as fast as those made for 1 or 2,048.
_ROWS_PACKED_FOR = 16


class Linear:
    """A layer's product, once there are weights to make it of; keeps them in no other form."""

    def __init__(self, form: Form, gated: bool = False) -> None:
        self._form = form
        self._gated = gated
        self._product: Product | None = None

    @property
    def packed(self) -> NativeLinear | None:
        """What the native decoder takes, where the weights are in such a form."""
        return self._product if isinstance(self._product, NativeLinear) else None

    def fill(self, parts: Sequence[Weight], bias: torch.Tensor | None = None) -> None:
        """Takes the weight in parts [some of out, in], end to end, and a bias [out]."""
        self._product = self._form(parts, bias, self._gated)

    def share(self, product: Product) -> None:
        """Uses what another layer has made of the same weight."""
        self._product = product

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, in] to [tokens, out], of which half is left where the layer is gated (SwiGLU; Shazeer, 2020)."""
        assert self._product is not None, "the weights are not loaded"
        return self._product(x)


def check_quantization(quantization: str | None, device: torch.device) -> None:
    """Raises ConfigError for a quantisation that is unknown, or that does not run on this device."""
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"quantization {quantization!r} is none of {', '.join(QUANTIZATIONS)}")
    if device.type != "cpu":
        raise ConfigError(f"quantization {quantization!r} runs on CPUs; the device is {str(device)!r}")


def linear_form(quantization: str | None, dtype: torch.dtype, device: torch.device) -> Form:
    """How the linears of a model of this dtype keep their weights; raises ConfigError."""
    check_quantization(quantization, device)
    if quantization is None:
        return _Unquantized(dtype, device)
    if quantization == "int8":
        return lambda parts, bias, gated: int8_linear(_whole(parts), bias, dtype, gated)
    if dtype not in STORAGE:
        raise ConfigError(f"quantization {quantization!r} computes in bfloat16 or float32, not in {dtype}")
    if reason := native.unavailable():
        raise ConfigError(f"quantization {quantization!r} cannot run: {reason}")
    inflated = _Unquantized(dtype, device)

    def in_blocks(parts: Sequence[Weight], bias: torch.Tensor | None, gated: bool) -> Product:
        return block_linear(parts, bias, gated) or inflated(parts, bias, gated)

    return in_blocks


class Embedding:
    """A weight [vocab, hidden] of which rows are looked up; one in blocks stays so."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._weight: torch.Tensor | BlockLinear | None = None

    def fill(self, weight: Weight) -> None:
        """Takes the weight."""
        self._weight = block_linear([weight]) or dense(weight).to(self._device, self._dtype)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows [tokens, hidden] of int64 ids [tokens]."""
        assert self._weight is not None, "the weights are not loaded"
        if isinstance(self._weight, BlockLinear):
            return self._weight.rows(token_ids, self._dtype)
        return F.embedding(token_ids, self._weight)

    def tie(self, head: Linear) -> None:
        """Makes `head` the product with this weight."""
        assert self._weight is not None, "the weights are not loaded"
        if isinstance(self._weight, BlockLinear):
            head.share(self._weight)
        else:
            head.fill([self._weight])


class _Unquantized:
    """Weights in the model's own dtype: packed for the native kernels where there are any, else as torch takes them.

    Where torch multiplies bfloat16 natively they are packed for oneDNN: `F.linear` would pack them anew at each
    call, which costs two to three times the product itself at decode's batch sizes.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._packs = (
            device.type == "cpu"
            and dtype == torch.bfloat16
            and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
            and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )

    def __call__(self, parts: Sequence[Weight], bias: torch.Tensor | None, gated: bool) -> Product:
        weight = _whole([dense(part).to(self._device, self._dtype) for part in parts])
        if PackedLinear.fits(weight, gated):
            return PackedLinear(weight, bias, gated=gated)
        if not self._packs:
            return _gated(lambda x: F.linear(x, weight, bias), gated)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_PACKED_FOR)

        def product(x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
            return found

        return _gated(product, gated)


def _gated(product: Product, gated: bool) -> Product:
    return (lambda x: silu_mul(product(x))) if gated else product


def _whole(parts: Sequence[Weight]) -> torch.Tensor:
    return dense(parts[0]) if len(parts) == 1 else torch.cat([dense(part) for part in parts])
