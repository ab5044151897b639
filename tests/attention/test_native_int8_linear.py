"""Int8 linears at every level: exact whole numbers inside, close to the float product."""

import pytest
import torch
from torch.nn import functional as F

from tests.attention.native_levels import LEVELS, at_every_level, needs_native
from trunkline.attention.int8_linear import Int8Linear, TorchInt8Linear, int8_linear

pytestmark = needs_native


def operands(rows: int, cols: int, outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows + cols + outputs)
    x = torch.randn(rows, cols + 3, generator=generator).to(dtype)[:, :cols]
    return x, torch.randn(outputs, cols, generator=generator), torch.randn(outputs, generator=generator)


def int8_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same in float64, where all whole numbers that occur are exact."""
    row_scale = (x.float().abs().amax(1, keepdim=True) / 127).double()
    scale = (weight.abs().amax(1) / 127).double()
    # Rounded as the kernel does, after a product with the reciprocal in float32.
    inverse = torch.where(row_scale > 0, 1 / row_scale.float(), 0.0)
    q = (x.float() * inverse).round().double()
    w = (weight / scale.float()[:, None]).round().double()
    return (q @ w.T) * row_scale * scale + bias.double()


@at_every_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "cols", "outputs"), [(1, 576, 960), (5, 70, 33), (16, 64, 64), (37, 129, 100), (64, 1536, 576)]
)
def test_the_product_of_the_rounded_factors_is_exact(
    level: str, rows: int, cols: int, outputs: int, dtype: torch.dtype
) -> None:
    x, weight, bias = operands(rows, cols, outputs, dtype)
    x[rows // 2] = 0
    found = Int8Linear(weight, bias, level=level)(x)
    expected = int8_product(x, weight, bias)
    error = (found.double() - expected).abs() / expected.abs().clamp(min=1)
    print(f"largest difference {error.max():.2e} at {int(error.argmax())}")
    assert found.dtype == dtype
    assert error.max() < (4e-3 if dtype == torch.bfloat16 else 2e-6)


def test_every_level_and_batch_size_gives_the_same_bits() -> None:
    x, weight, _ = operands(70, 200, 130, torch.float32)
    layers = [Int8Linear(weight, level=level) for level in LEVELS]
    expected = layers[0](x)
    for layer in layers:
        assert torch.equal(layer(x), expected)
    for layer in [*layers, *(Int8Linear(weight[:128], level=level, gated=True) for level in LEVELS)]:
        expected = layer(x)
        assert torch.equal(torch.cat([layer(x[:1]), layer(x[1:34]), layer(x[34:])]), expected)


@at_every_level
def test_it_is_close_to_the_float_product(level: str) -> None:
    x, weight, bias = operands(20, 576, 300, torch.float32)
    exact = x @ weight.T + bias
    error = (Int8Linear(weight, bias, level=level)(x) - exact).norm() / exact.norm()
    print(f"relative error {error:.2e}")
    assert error < 0.012


@at_every_level
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_its_row_alone(level: str, value: float) -> None:
    x, weight, bias = operands(3, 100, 40, torch.float32)
    layer = Int8Linear(weight, bias, level=level)
    before = layer(x)
    x[1, 17] = value
    after = layer(x)
    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_torchs_layer_gives_the_same_bits(dtype: torch.dtype, with_bias: bool) -> None:
    x, weight, bias = operands(21, 200, 130, dtype)
    x[3], x[4, 5], x[6, 7] = 0, torch.nan, -torch.inf
    given = bias if with_bias else None
    found, expected = TorchInt8Linear(weight, given)(x), Int8Linear(weight, given)(x)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_the_native_layer_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, weight, _ = operands(1, 32, 16, torch.float32)
    assert isinstance(int8_linear(weight, None, torch.bfloat16), Int8Linear)
    assert isinstance(int8_linear(weight, None, torch.float16), TorchInt8Linear)
    monkeypatch.setattr("trunkline.attention.native.unavailable", lambda: "no compiler")
    assert isinstance(int8_linear(weight, None, torch.bfloat16), TorchInt8Linear)


@at_every_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "cols", "outputs"), [(1, 576, 3072), (37, 129, 64), (600, 40, 96)])
def test_a_gated_layer_is_silu_of_one_half_times_the_other(
    level: str, rows: int, cols: int, outputs: int, dtype: torch.dtype
) -> None:
    x, weight, bias = operands(rows, cols, outputs, dtype)
    gate, up = int8_product(x, weight, bias).chunk(2, 1)
    expected = F.silu(gate) * up
    found = Int8Linear(weight, bias, level=level, gated=True)(x)
    error = (found.double() - expected).abs() / expected.abs().clamp(min=1)
    print(f"largest difference {error.max():.2e} at {int(error.argmax())}")
    assert found.shape == expected.shape
    assert error.max() < (4e-3 if dtype == torch.bfloat16 else 4e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("outputs", [96, 70])
def test_gated_products_need_no_whole_strips_nor_native_kernels(dtype: torch.dtype, outputs: int) -> None:
    x, weight, bias = operands(9, 50, outputs, dtype)
    gate, up = int8_product(x, weight, bias).chunk(2, 1)
    found = int8_linear(weight, bias, dtype, gated=True)(x)
    torch.testing.assert_close(found.double(), F.silu(gate) * up, rtol=5e-3, atol=1e-2)
