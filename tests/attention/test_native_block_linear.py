"""Linears on a GGUF file's blocks at every level, against float64 with exactly the same weights."""

from functools import cache

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from tests.attention.native_levels import LEVELS, at_every_level, needs_native
from trunkline.attention.block_linear import BLOCK_KINDS, FEW_ROWS, BlockLinear

pytestmark = needs_native

of_every_kind = pytest.mark.parametrize("kind", sorted(BLOCK_KINDS))


@cache
def blocks(kind: str, outputs: int, cols: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A file's bytes [outputs, ...] and the numbers they stand for, float64."""
    weight = torch.randn(outputs, cols, generator=torch.Generator().manual_seed(outputs + cols))
    weight[0] *= 1e-5  # its scales are subnormal in half precision
    stored = quantize(weight.numpy(), GGMLQuantizationType[kind])
    return torch.from_numpy(stored), torch.from_numpy(dequantize(stored, GGMLQuantizationType[kind])).double()


def inputs(rows: int, cols: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(rows, cols + 3, generator=torch.Generator().manual_seed(rows))[:, :cols]
    return (x * torch.logspace(-1, 1, cols)).to(dtype)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x as whole multiples of a block's largest magnitude / 127, or 127 * 128, as the kernels round it; float64."""
    wide = x.float().reshape(len(x), -1, 32)
    scale = wide.abs().amax(2, keepdim=True) / (127 if x.dtype == torch.bfloat16 else 127 * 128)
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    return ((wide * inverse).round().double() * scale.double()).view(x.shape)


def in_bf16(level: str, rows: int) -> bool:
    return level == "amx" and rows > FEW_ROWS


@at_every_level
@of_every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "cols", "outputs"),
    [
        (1, 576, 96),
        (2, 32, 33),
        (5, 64, 1),
        (6, 96, 100),
        (7, 96, 100),
        (16, 96, 100),
        (17, 96, 100),
        (33, 1536, 48),
        (600, 64, 17),
    ],
)
def test_the_product_is_that_of_the_files_weights(
    level: str, kind: str, rows: int, cols: int, outputs: int, dtype: torch.dtype
) -> None:
    stored, weight = blocks(kind, outputs, cols)
    x = inputs(rows, cols, dtype)
    x[rows // 2] = 0
    bias = torch.linspace(-1, 1, outputs)
    found = BlockLinear(kind, stored, bias, level=level)(x)
    taken = x.double() if in_bf16(level, rows) else rounded(x)
    expected = taken @ weight.T + bias.double()
    size = taken.abs() @ weight.T.abs() + 1  # of what is added up
    error = ((found.double() - expected).abs() / size).max()
    print(f"largest difference {error:.2e}")
    assert found.dtype == dtype
    # bfloat16 rounds by up to 2^-8: the result, weights, and x where it comes as float32.
    assert error < (8e-3 if dtype == torch.bfloat16 or in_bf16(level, rows) else 2e-6)


@at_every_level
@of_every_kind
def test_many_rows_are_near_the_product_on_the_whole(level: str, kind: str) -> None:
    stored, weight = blocks(kind, 100, 576)
    x = inputs(70, 576)
    found, expected = BlockLinear(kind, stored, None, level=level)(x).double(), x.double() @ weight.T
    error = (found - expected).norm() / expected.norm()
    print(f"relative error {error:.2e}")
    assert error < (3e-3 if in_bf16(level, 70) else 5e-5)


@at_every_level
@of_every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_do_not_depend_on_its_batch_mates(level: str, kind: str, dtype: torch.dtype) -> None:
    x = inputs(70, 96, dtype)
    layer = BlockLinear(kind, blocks(kind, 130, 96)[0], None, level=level)
    few, many = FEW_ROWS, layer(x)
    for rows in (7, 17, 33, 64):
        assert torch.equal(layer(x[70 - rows :]), many[70 - rows :])
    expected = layer(x[:few])
    for row in range(few):
        assert torch.equal(layer(x[row : row + 1]), expected[row : row + 1])
    assert torch.equal(layer(x[1:4]), expected[1:4])
    if not in_bf16(level, 70):
        assert torch.equal(many[:few], expected)


@at_every_level
@of_every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_come_back_as_the_numbers_they_stand_for(level: str, kind: str, dtype: torch.dtype) -> None:
    stored, weight = blocks(kind, 50, 96)
    indices = torch.tensor([49, 0, 7, 7, 16])
    found = BlockLinear(kind, stored, None, level=level).rows(indices, dtype)
    assert torch.equal(found, weight[indices].to(dtype))


@of_every_kind
def test_the_weight_takes_no_more_than_in_the_file(kind: str) -> None:
    stored, _ = blocks(kind, 64, 512)
    for level in LEVELS:
        assert BlockLinear(kind, stored, None, level=level).num_bytes == stored.nbytes


@at_every_level
@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_its_row_alone(level: str, rows: int, value: float) -> None:
    x = inputs(rows, 96)
    layer = BlockLinear("Q4_1", blocks("Q4_1", 40, 96)[0], None, level=level)
    before = layer(x)
    x[1, 17] = value
    after = layer(x)
    assert not after[1].isfinite().any()
    others = torch.arange(rows) != 1
    assert torch.equal(after[others], before[others])


@at_every_level
@pytest.mark.parametrize("rows", [3, 40])
def test_a_gated_product_is_that_of_its_halves(level: str, rows: int) -> None:
    stored, weight = blocks("Q4_1", 64, 96)
    x = inputs(rows, 96)
    bias = torch.linspace(-1, 1, 64)
    found = BlockLinear("Q4_1", stored, bias, gated=True, level=level)(x)
    gate, up = (x.double() @ weight.T + bias.double()).chunk(2, 1)
    expected = torch.nn.functional.silu(gate) * up
    assert (found.double() - expected).norm() < 1e-2 * expected.norm()
