"""Linear layers: in every form the product of the checkpoint's weights; the weight in one form only."""

import weakref

import pytest
import torch
from torch.nn import functional as F

from trunkline.errors import ConfigError
from trunkline.runtime.models.linear import Linear, linear_form
from trunkline.runtime.models.weights import ParameterTable

CPU = torch.device("cpu")


def loaded(
    dtype: torch.dtype, with_bias: bool, quantization: str | None
) -> tuple[Linear, torch.Tensor, torch.Tensor | None]:
    """A fused layer, and the weight and bias it was made of, in the layer's dtype."""
    table = ParameterTable(dtype, CPU, linear_form(quantization, dtype, CPU))
    linear = table.linear([("a", 24), ("b", 40)], 48, with_bias)
    random = torch.Generator().manual_seed(0)
    tensors = {
        "a.weight": torch.randn(24, 48, generator=random),
        "b.weight": torch.randn(40, 48, generator=random),
    }
    if with_bias:
        tensors |= {"a.bias": torch.randn(24, generator=random), "b.bias": torch.randn(40, generator=random)}
    table.load(reversed(tensors.items()))
    whole = torch.cat([tensors["a.weight"], tensors["b.weight"]]).to(dtype)
    biases = torch.cat([tensors["a.bias"], tensors["b.bias"]]).to(dtype) if with_bias else None
    return linear, whole, biases


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_the_product_is_that_of_the_checkpoints_weights(
    dtype: torch.dtype, with_bias: bool, rows: int
) -> None:
    linear, weight, bias = loaded(dtype, with_bias, None)
    x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(
        linear(x).double(), exact, rtol=1e-2, atol=1e-1 if dtype == torch.bfloat16 else 1e-4
    )


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_int8_is_within_a_percent_of_it(dtype: torch.dtype, with_bias: bool, rows: int) -> None:
    linear, weight, bias = loaded(dtype, with_bias, "int8")
    x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = linear(x)
    assert found.dtype == dtype
    assert found.shape == exact.shape
    assert (found.double() - exact).norm() <= 0.013 * exact.norm()


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_given_weight_is_not_kept_beside_what_was_made_of_it(quantization: str | None) -> None:
    if quantization is None and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("bfloat16 weights are used as they are here")
    linear = Linear(linear_form(quantization, torch.bfloat16, CPU))
    weight = torch.randn(32, 48).bfloat16()
    given = weakref.ref(weight)
    linear.fill([weight])
    del weight
    assert given() is None


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_nothing_is_allocated_before_a_layers_weights_have_come(quantization: str | None) -> None:
    table = ParameterTable(torch.float32, CPU, linear_form(quantization, torch.float32, CPU))
    table.linear([("a", 10**7)], 10**7)


@pytest.mark.parametrize(
    ("quantization", "device", "says"),
    [
        ("int3", "cpu", "quantization 'int3' is none of int8, gguf$"),
        ("int8", "cuda:1", "quantization 'int8' runs on CPUs; the device is 'cuda:1'$"),
    ],
)
def test_what_cannot_be_is_refused_by_name(quantization: str, device: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        linear_form(quantization, torch.bfloat16, torch.device(device))
