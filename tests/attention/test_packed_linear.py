"""Packed linears at every level: close to float64, the same bits whatever else is in the batch."""

import pytest
import torch
from torch.nn import functional as F

from tests.attention.native_levels import at_every_level, needs_native
from trunkline.attention.packed_linear import PackedLinear

pytestmark = needs_native

SHAPES = [(1, 576, 960), (5, 64, 33), (16, 96, 64), (37, 128, 100), (600, 64, 96)]
# Sums are float32; what is stored has the dtype's own precision.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 5e-3}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


def operands(rows: int, cols: int, outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows + cols + outputs)
    shapes = (rows, cols), (outputs, cols), (outputs,)
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found.double() - expected).abs() / (expected.abs() + expected.abs().mean())
    print(f"largest difference {error.max():.2e} at {int(error.argmax())}")
    assert found.shape == expected.shape
    assert error.max() < 10 * TOLERANCE[found.dtype]
    assert error.mean() < TOLERANCE[found.dtype]


@at_every_level
@DTYPES
@pytest.mark.parametrize(("rows", "cols", "outputs"), SHAPES)
def test_it_is_the_product(level: str, rows: int, cols: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight, bias = operands(rows, cols, outputs, dtype)
    found = PackedLinear(weight, bias, level=level)(x)
    assert_close(found, F.linear(x.double(), weight.double(), bias.double()))
    assert_close(PackedLinear(weight, level=level)(x), F.linear(x.double(), weight.double()))


@at_every_level
@DTYPES
@pytest.mark.parametrize(("rows", "cols", "outputs"), [(1, 64, 64), (40, 96, 3072)])
def test_a_gated_one_ends_in_silu_of_the_gate_times_up(
    level: str, rows: int, cols: int, outputs: int, dtype: torch.dtype
) -> None:
    x, weight, bias = operands(rows, cols, outputs, dtype)
    gate, up = F.linear(x.double(), weight.double(), bias.double()).chunk(2, -1)
    assert_close(PackedLinear(weight, bias, gated=True, level=level)(x), F.silu(gate) * up)


@at_every_level
@DTYPES
def test_a_rows_bits_do_not_depend_on_its_batch(level: str, dtype: torch.dtype) -> None:
    x, weight, _ = operands(70, 128, 96, dtype)
    layer = PackedLinear(weight, level=level)
    assert torch.equal(torch.cat([layer(x[:1]), layer(x[1:34]), layer(x[34:])]), layer(x))


@at_every_level
def test_what_is_not_finite_stays_in_its_row(level: str) -> None:
    x, weight, _ = operands(20, 64, 40, torch.bfloat16)
    layer = PackedLinear(weight, level=level)
    clean = layer(x)
    x[3, 5] = torch.nan
    found = layer(x)
    assert found[3].isnan().all()
    found[3] = clean[3]
    assert torch.equal(found, clean)


@pytest.mark.parametrize(
    ("shape", "dtype", "gated", "fits"),
    [
        ((40, 64), torch.bfloat16, False, True),
        ((40, 48), torch.bfloat16, False, False),  # no whole tile along the input
        ((40, 47), torch.float32, False, True),
        ((40, 64), torch.bfloat16, True, False),  # no sixteens of gate and up
        ((64, 64), torch.float32, True, True),
        ((64, 64), torch.float16, False, False),
    ],
)
def test_it_says_which_weights_it_takes(
    shape: tuple[int, int], dtype: torch.dtype, gated: bool, fits: bool
) -> None:
    assert PackedLinear.fits(torch.empty(shape, dtype=dtype), gated) is fits
