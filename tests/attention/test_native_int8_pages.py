"""The cpu backend on pages of int8: the contract of all backends for the keys and values that were rounded."""

from functools import partial

import pytest
import torch

from tests.attention import test_backend_contract as contract
from tests.attention.native_levels import LEVELS, at_every_level, needs_native
from tests.attention.steps import make_config, make_step, rounded, to_int8
from tests.attention.subjects import Subject
from tests.attention.test_native_backend import LONG
from trunkline.attention import KVPool, make_backend
from trunkline.attention.cpu import CpuBackend

pytestmark = needs_native

test_answers_equal_dense_attention = contract.test_answers_equal_dense_attention
test_every_group_and_head_size = contract.test_every_group_and_head_size
test_every_page_size = contract.test_every_page_size
test_a_window_hides_what_lies_further_back = contract.test_a_window_hides_what_lies_further_back
test_logits_are_capped = contract.test_logits_are_capped
test_bfloat16 = contract.test_bfloat16
test_random_steps = contract.test_random_steps
test_very_uneven_lengths_are_answered = contract.test_very_uneven_lengths_are_answered
test_layers_keep_their_own_windows_and_pages = contract.test_layers_keep_their_own_windows_and_pages


@pytest.fixture(params=LEVELS or ["none"])
def subject(request: pytest.FixtureRequest) -> Subject:
    level: str = request.param
    return Subject("cpu", partial(CpuBackend, level=level), kv_dtype=torch.int8, masks=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [6, 16, 64])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (40, 1.5)])
def test_many_tiles_equal_dense_attention(
    subject: Subject, window: int | None, soft_cap: float | None, head_dim: int, dtype: torch.dtype
) -> None:
    config = make_config(num_heads=6, num_kv_heads=2, head_dim=head_dim, window=window, soft_cap=soft_cap)
    subject.check(config, subject.step(config, LONG, shared=256, dtype=dtype))


@pytest.mark.parametrize("mix", contract.MIXES)
def test_answers_are_near_those_of_what_was_not_rounded(subject: Subject, mix: str) -> None:
    config = make_config()
    answer = subject.answer(config, subject.step(config, contract.MIXES[mix]))
    expected = make_step(config, contract.MIXES[mix]).expected
    # A number is off by up to half a unit, 1/254 of its row's largest, here about 3: 0.012. That reaches a result
    # through the values at most so, and again through the weights.
    difference = (answer - expected).abs().max()
    print(f"largest difference {difference:.3f}")
    assert 1e-3 < difference < 2 * 0.012


def test_only_the_steps_slots_of_the_layer_are_written(subject: Subject) -> None:
    config = make_config(num_layers=2, head_dim=6)
    step = subject.step(config, contract.MIXES["all at once"], layer=1)
    before = KVPool(config, step.pool.num_pages, torch.int8)
    before.data.copy_(step.pool.data)
    subject.answer(config, step, layer=1)
    slots = torch.from_numpy(step.metadata.slot_mapping)
    for pool in (step.pool, before):
        for rows, scales, given in ((pool.k, pool.k_scales, step.k), (pool.v, pool.v_scales, step.v)):
            written, written_scales = rows[1][slots // 16, slots % 16], scales[1][slots // 16, :, slots % 16]
            expected, expected_scales = to_int8(given)
            is_written = torch.equal(written, expected) and torch.equal(
                written_scales, expected_scales.squeeze(-1)
            )
            assert is_written is (pool is step.pool)
            rows[1][slots // 16, slots % 16] = 7
            scales[1][slots // 16, :, slots % 16] = 7.0
    assert torch.equal(before.data, step.pool.data)


@at_every_level
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("head_dim", [6, 64, 80])
def test_fused_rows_are_rounded_after_they_were_rotated(
    level: str, head_dim: int, dtype: torch.dtype, tolerance: float
) -> None:
    config = make_config(num_heads=4, num_kv_heads=2, head_dim=head_dim)
    step = make_step(config, contract.MIXES["all at once"], dtype=dtype, kv_dtype=torch.int8)
    angles = torch.outer(torch.arange(100.0), 10.0 ** -torch.arange(head_dim // 2))
    backend = CpuBackend(config, step.pool, level)
    backend.plan(step.metadata)
    out = backend.forward_fused(0, torch.cat([step.q, step.k, step.v], 1), angles.cos(), angles.sin())

    c, s = (f(angles)[step.metadata.positions, None].double() for f in (torch.cos, torch.sin))
    first, second = torch.cat([step.q, step.k], 1).double().chunk(2, -1)
    rows = torch.cat([first * c - second * s, second * c + first * s], -1)
    slots = torch.from_numpy(step.metadata.slot_mapping)
    stored = step.pool.k[0][slots // 16, slots % 16], step.pool.k_scales[0][slots // 16, :, slots % 16]
    keys = stored[0].double() * stored[1].double().unsqueeze(-1)
    units = rows[:, 4:].abs().amax(-1, keepdim=True) / 127
    assert ((keys - rows[:, 4:]).abs() / units).max() < 0.5 + 1e-3
    assert torch.equal(step.pool.v[0][slots // 16, slots % 16], to_int8(step.v)[0])

    pool = KVPool(config, step.pool.num_pages, torch.float64)
    for wide, whole, scales in zip(
        (pool.k[0], pool.v[0]),
        (step.pool.k[0], step.pool.v[0]),
        (step.pool.k_scales[0], step.pool.v_scales[0]),
        strict=True,
    ):
        wide.copy_(whole * scales.double().transpose(1, 2).unsqueeze(-1))
    oracle = make_backend("reference", config, pool)
    oracle.plan(step.metadata)
    expected = oracle.forward(0, rows[:, :4], keys, rounded(step.v))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=3 * tolerance)


@at_every_level
def test_rows_of_nothing_stay_nothing(level: str) -> None:
    config = make_config()
    step = make_step(config, [(0, 20)], kv_dtype=torch.int8)
    nothing = torch.zeros_like(step.k)
    backend = CpuBackend(config, step.pool, level)
    backend.plan(step.metadata)
    assert not backend.forward(0, step.q, nothing, nothing).any()
