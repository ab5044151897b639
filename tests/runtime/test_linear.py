"""Linear layers: packed or not, the same product; the unpacked weight is given back."""

import weakref

import pytest
import torch
from torch.nn import functional as F

from trunkline.runtime.models.linear import Linear
from trunkline.runtime.models.weights import ParameterTable


def loaded(
    dtype: torch.dtype, with_bias: bool
) -> tuple[Linear, torch.Tensor, torch.Tensor | None, weakref.ref]:
    table = ParameterTable(dtype, torch.device("cpu"))
    weight = table.fused([("a.weight", 24), ("b.weight", 40)], 48)
    bias = table.fused([("a.bias", 24), ("b.bias", 40)]) if with_bias else None
    linear = Linear(table, weight, bias)
    random = torch.Generator().manual_seed(0)
    tensors = {
        "a.weight": torch.randn(24, 48, generator=random),
        "b.weight": torch.randn(40, 48, generator=random),
    }
    if with_bias:
        tensors |= {"a.bias": torch.randn(24, generator=random), "b.bias": torch.randn(40, generator=random)}
    table.load(tensors.items())
    whole = torch.cat([tensors["a.weight"], tensors["b.weight"]]).to(dtype)
    biases = torch.cat([tensors["a.bias"], tensors["b.bias"]]).to(dtype) if with_bias else None
    return linear, whole, biases, weakref.ref(weight)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_the_product_is_that_of_the_checkpoints_weights(
    dtype: torch.dtype, with_bias: bool, rows: int
) -> None:
    linear, weight, bias, _ = loaded(dtype, with_bias)
    x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(
        linear(x).double(), exact, rtol=1e-2, atol=1e-1 if dtype == torch.bfloat16 else 1e-4
    )


def test_a_packed_weight_is_kept_once() -> None:
    packs = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    _linear, _, _, weight = loaded(torch.bfloat16, False)
    assert (weight() is None) == packs
