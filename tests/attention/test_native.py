"""Loading the native kernels, and those that are not attention, at every level against float64."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.attention.native_levels import LEVELS, at_every_level, needs_native
from tests.attention.steps import make_config
from trunkline.attention import AttentionMetadata, KVPool, fused, native
from trunkline.attention.cpu import CpuBackend
from trunkline.attention.memory import advise_huge_pages
from trunkline.errors import ConfigError

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
at_both_dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE))


@pytest.fixture
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv("TRUNKLINE_CPU_LEVEL", name)
    return name


at_every_level_by_variable = pytest.mark.parametrize("level", LEVELS or ["none"], indirect=True)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    error = (found.double() - expected).abs() / expected.abs().clamp(min=1)
    print(f"largest difference {error.max():.2e} at {int(error.argmax())} of {tuple(found.shape)}")
    return bool(error.max() <= TOLERANCE[found.dtype])


def rows(count: int, cols: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random rows that lie apart, as a slice of a wider tensor."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, cols + 5, generator=generator) * 3).to(dtype)[:, :cols]


@needs_native
@at_every_level_by_variable
@at_both_dtypes
@pytest.mark.parametrize(("count", "cols"), [(1, 576), (3, 7), (100, 100), (33, 2048)])
def test_rms_norm(level: str, dtype: torch.dtype, count: int, cols: int) -> None:
    x, residual, weight = rows(count, cols, dtype), rows(count, cols, dtype, 1), rows(1, cols, dtype, 2)[0]
    total = (x.double() + residual.double()).to(dtype)

    def expected(x: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        return wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()

    assert close(fused.rms_norm(x, weight, 1e-5), expected(x))
    assert close(fused.add_rms_norm(x, residual, weight, 1e-5), expected(total))
    assert torch.equal(residual, total)


@needs_native
@at_every_level_by_variable
@at_both_dtypes
@pytest.mark.parametrize(("count", "cols"), [(1, 1536), (3, 7), (70, 100)])
def test_silu_mul(level: str, dtype: torch.dtype, count: int, cols: int) -> None:
    x = rows(count, 2 * cols, dtype)
    x[0, :4] = torch.tensor([0.0, -200.0, 200.0, -88.0])
    gate, up = x.double().chunk(2, -1)
    assert close(fused.silu_mul(x), F.silu(gate) * up)


@needs_native
@at_every_level
@at_both_dtypes
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("head_dim", [64, 80, 6])
def test_rotation_and_storing_in_one_pass(
    level: str, head_dim: int, normed: bool, dtype: torch.dtype
) -> None:
    config = make_config(num_heads=6, num_kv_heads=2, head_dim=head_dim)
    starts, lengths = [40, 0, 18], [1, 30, 5]
    tables = [np.array(pages, np.int32) for pages in ([7, 2, 5], [1, 9], [4, 3])]
    metadata = AttentionMetadata.build(starts, lengths, tables, 16)
    qkv = rows(36, 10 * head_dim, dtype).contiguous().view(36, 10, head_dim)
    angles = torch.outer(torch.arange(64.0), 1000.0 ** -torch.linspace(0, 1, head_dim // 2))
    weight = rows(8, head_dim, dtype, 1).contiguous() if normed else None
    qk = qkv[:, :8].double()
    if weight is not None:
        qk = qk * (qk.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    first, second = qk.chunk(2, -1)
    cos, sin = (f(angles)[metadata.positions][:, None].double() for f in (torch.cos, torch.sin))
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    pools = [KVPool(config, 9, dtype) for _ in range(2)]
    for pool in pools:
        pool.data.fill_(0.25)
    in_one, in_two = (CpuBackend(config, pool, level) for pool in pools)
    in_one.plan(metadata)
    in_two.plan(metadata)
    out = in_one.forward_fused(0, qkv, angles.cos(), angles.sin(), weight, 1e-6)
    slots = torch.from_numpy(metadata.slot_mapping)
    keys, values = (part[0].flatten(0, 1)[slots] for part in (pools[0].k, pools[0].v))
    assert close(keys, turned[:, 6:])
    assert torch.equal(values, qkv[:, 8:])
    expected = in_two.forward(0, turned[:, :6].to(dtype), turned[:, 6:].to(dtype), qkv[:, 8:])
    torch.testing.assert_close(out, expected, rtol=0, atol=0.1 if dtype == torch.bfloat16 else 1e-4)


@at_both_dtypes
def test_torch_does_the_same_without_the_kernels(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, residual, weight = rows(5, 64, dtype), rows(5, 64, dtype, 1), rows(1, 64, dtype, 2)[0]
    copy = residual.clone()
    with_kernels = [
        fused.rms_norm(x, weight, 1e-5),
        fused.add_rms_norm(x, copy, weight, 1e-5),
        fused.silu_mul(x),
    ]
    monkeypatch.setattr(native, "unavailable", lambda: "no compiler")
    without = [
        fused.rms_norm(x, weight, 1e-5),
        fused.add_rms_norm(x, residual, weight, 1e-5),
        fused.silu_mul(x),
    ]
    assert torch.equal(copy, residual)
    for a, b in zip(with_kernels, without, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


@needs_native
def test_the_best_level_is_taken_and_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUNKLINE_CPU_LEVEL", raising=False)
    assert native.library().level == LEVELS[-1]
    monkeypatch.setenv("TRUNKLINE_CPU_LEVEL", "plain")
    assert native.library().level == "plain"
    assert native.library(LEVELS[-1]).level == LEVELS[-1]


@needs_native
def test_an_unknown_level_is_named() -> None:
    with pytest.raises(ConfigError, match="CPU level 'sse9' is none of plain, avx2"):
        native.library("sse9")


@needs_native
def test_a_level_above_the_machines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "machine_levels", lambda: ("plain",))
    native.clear()
    with pytest.raises(ConfigError, match="CPU level 'amx' is above this machine's, 'plain'"):
        native.library("amx")
    native.clear()


@needs_native
def test_torchs_matrix_products_and_the_kernels_do_not_disturb_each_other() -> None:
    # Both configure the CPU's matrix tiles, which are state of the thread.
    config = make_config(num_heads=8, num_kv_heads=2)
    backend = CpuBackend(config, KVPool(config, 9, torch.bfloat16))
    backend.plan(AttentionMetadata.build([0], [100], [np.arange(1, 8, dtype=np.int32)], 16))
    x, weight = rows(100, 512, torch.bfloat16).contiguous(), rows(768, 512, torch.bfloat16, 1).contiguous()
    products, answers = [], []
    for _ in range(5):
        qkv = F.linear(x, weight).view(100, 12, 64)
        products.append(qkv)
        answers.append(backend.forward(0, qkv[:, :8], qkv[:, 8:10], qkv[:, 10:]))
    torch.testing.assert_close(
        products[0].flatten(1).double(), x.double() @ weight.double().T, rtol=1e-2, atol=1.0
    )
    assert all(torch.equal(product, products[0]) for product in products)
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_where_nothing_was_compiled_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_file", lambda level: None)
    native.clear()
    assert "not compiled when Trunkline was installed" in str(native.unavailable())
    with pytest.raises(native.NativeUnavailable):
        native.library()
    native.clear()


@pytest.mark.parametrize("size", [1, 5000, 3 << 20])
def test_asking_for_large_pages_leaves_the_contents_alone(size: int) -> None:
    data = torch.arange(size, dtype=torch.int32)
    advise_huge_pages(data)
    assert torch.equal(data, torch.arange(size, dtype=torch.int32))


@needs_native
def test_one_openmp_runtime_serves_torch_and_the_kernels() -> None:
    script = (
        "import torch; from trunkline.attention import native, fused\n"
        "x = torch.randn(512, 512); fused.rms_norm(x, torch.ones(512), 1e-5); x @ x\n"
        "names = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split()[-1]}\n"
        "print(sum('gomp' in n or 'iomp' in n or 'libomp' in n for n in names))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"
