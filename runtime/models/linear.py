"""Matrix products with weights, in the fastest form this machine has for them."""

import torch
from torch.nn import functional as F

from .weights import ParameterTable

# One packing serves every batch size: oneDNN's layout for this many rows was as fast as those made for 1 or 2,048.
_ROWS_PACKED_FOR = 16


class Linear:
    """x [tokens, in] -> [tokens, out] by a weight [out, in] that the table fills.

    On a CPU that multiplies bfloat16 natively the weight is packed for oneDNN once it is loaded: `F.linear` packs
    it anew at each call, which costs two to three times the product itself at decode's batch sizes.
    """

    def __init__(self, table: ParameterTable, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight: torch.Tensor | None = weight
        self._bias = bias
        self._packed: torch.Tensor | None = None
        if _packs(weight):
            table.when_loaded(self._pack)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._packed, self._bias, "none", [], ""
            )
            return product
        assert self._weight is not None
        return F.linear(x, self._weight, self._bias)

    def _pack(self) -> None:
        assert self._weight is not None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, _ROWS_PACKED_FOR)
        self._weight = None


def _packs(weight: torch.Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
