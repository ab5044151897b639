"""The cpu backend at every level of the machine: the contract of all backends, and what is its own."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

from tests.attention import test_backend_contract as contract
from tests.attention.native_levels import LEVELS, at_every_level, needs_native
from tests.attention.steps import make_config, make_step, poison
from tests.attention.subjects import Subject
from trunkline.attention import AttentionConfig, AttentionMetadata, KVPool
from trunkline.attention.cpu import CpuBackend
from trunkline.errors import ConfigError

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
test_the_scale_is_the_configs = contract.test_the_scale_is_the_configs
test_only_the_steps_slots_of_the_layer_are_written = (
    contract.test_only_the_steps_slots_of_the_layer_are_written
)
test_a_backend_serves_one_step_after_another = contract.test_a_backend_serves_one_step_after_another
test_a_page_outside_the_pool_is_refused = contract.test_a_page_outside_the_pool_is_refused
test_a_mask_takes_the_place_of_causality = contract.test_a_mask_takes_the_place_of_causality
test_fused_rows_are_normalised_rotated_and_attended = (
    contract.test_fused_rows_are_normalised_rotated_and_attended
)
test_a_pool_made_for_another_model_is_refused = contract.test_a_pool_made_for_another_model_is_refused


@pytest.fixture(params=LEVELS or ["none"])
def subject(request: pytest.FixtureRequest) -> Subject:
    level: str = request.param
    return Subject("cpu", partial(CpuBackend, level=level), masks=False)


# Several tiles of 128 keys, on and off their edges; short requests share whole tiles of the first 256.
LONG = [(300, 1), (511, 1), (512, 2), (256, 1), (400, 17), (127, 1), (128, 1), (0, 140), (383, 70)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (200, None), (40, 1.5)])
def test_many_tiles_equal_dense_attention(
    subject: Subject, window: int | None, soft_cap: float | None, dtype: torch.dtype
) -> None:
    config = make_config(num_heads=6, num_kv_heads=2, window=window, soft_cap=soft_cap)
    subject.check(config, make_step(config, LONG, shared=256, dtype=dtype))


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("group", range(1, 9))
def test_every_group_and_head_size_in_bfloat16(subject: Subject, group: int, head_dim: int) -> None:
    config = make_config(num_heads=group, num_kv_heads=1, head_dim=head_dim)
    step = make_step(config, [(130, 1), (0, 33), (16, 5), (2, 1)], dtype=torch.bfloat16, seed=group)
    subject.check(config, step)


# Of queries, and of pages where those are of another.
DTYPES = [
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.int8),
]


def attend(
    level: str,
    pool: KVPool,
    chunks: Sequence[tuple[int, int]],
    tables: Sequence[np.ndarray],
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Tokens [first, last) of one prompt for each (first, last) and its page table, in one step."""
    backend = CpuBackend(pool.config, pool, level)
    starts, lengths = [first for first, _ in chunks], [last - first for first, last in chunks]
    backend.plan(AttentionMetadata.build(starts, lengths, tables, pool.page_size))
    q, k, v = (torch.cat([part[first:last] for first, last in chunks]) for part in qkv)
    return backend.forward(0, q, k, v)


def random_prompt(
    config: AttentionConfig, length: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    q, k, v = (torch.randn(length, n, config.head_dim, generator=generator).to(dtype) for n in heads)
    return q, k, v


@at_every_level
@pytest.mark.parametrize(("dtype", "kv_dtype"), DTYPES)
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (150, 20.0)])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_a_tokens_result_does_not_depend_on_how_its_prompt_was_cut(
    level: str,
    chunk: int,
    window: int | None,
    soft_cap: float | None,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
) -> None:
    config = make_config(num_heads=3, num_kv_heads=1, window=window, soft_cap=soft_cap)
    length = 530 if chunk > 1 else 140
    prompt = random_prompt(config, length, dtype)
    table = np.random.default_rng(0).permutation(np.arange(1, 41)).astype(np.int32)
    pool = KVPool(config, 40, kv_dtype or dtype)
    whole = attend(level, pool, [(0, length)], [table], prompt)
    poison(pool)
    cuts = [(first, min(first + chunk, length)) for first in range(0, length, chunk)]
    parts = [attend(level, pool, [cut], [table], prompt) for cut in cuts]
    assert torch.equal(torch.cat(parts), whole)


@at_every_level
@pytest.mark.parametrize(("dtype", "kv_dtype"), DTYPES)
def test_company_threads_and_shared_pages_leave_every_bit_as_it_is(
    level: str, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    config = make_config(num_heads=9, num_kv_heads=3)
    step = make_step(config, LONG, shared=256, dtype=dtype, kv_dtype=kv_dtype)
    backend = CpuBackend(config, step.pool, level)
    backend.plan(step.metadata)
    together = backend.forward(0, step.q, step.k, step.v)
    threads = torch.get_num_threads()
    for i, (start, length) in enumerate(LONG):
        rows = slice(step.metadata.qo_indptr[i], step.metadata.qo_indptr[i + 1])
        table = step.metadata.kv_indices[step.metadata.kv_indptr[i] : step.metadata.kv_indptr[i + 1]]
        backend.plan(AttentionMetadata.build([start], [length], [table], config.page_size))
        torch.set_num_threads(1 + i % 3)
        alone = backend.forward(0, step.q[rows], step.k[rows], step.v[rows])
        torch.set_num_threads(threads)
        assert torch.equal(alone, together[rows])


@at_every_level
@pytest.mark.parametrize("length", [17, 52, 150])
def test_blocks_cut_for_the_threads_leave_every_bit_as_it_is(level: str, length: int) -> None:
    config = make_config(num_heads=9, num_kv_heads=3)
    step = make_step(config, [(1000, length), (0, 40)])
    backend = CpuBackend(config, step.pool, level)
    threads = torch.get_num_threads()
    outs = []
    for count in (1, 2, 3, 16):
        torch.set_num_threads(count)
        backend.plan(step.metadata)
        outs.append(backend.forward(0, step.q, step.k, step.v))
    torch.set_num_threads(threads)
    assert all(torch.equal(out, outs[0]) for out in outs)


@at_every_level
def test_more_sharers_than_a_block_has_room_for(level: str) -> None:
    config = make_config(num_heads=4, num_kv_heads=1)
    requests = [(130 + i % 40, 1) for i in range(150)]
    contract_step = make_step(config, requests, shared=128)
    backend = CpuBackend(config, contract_step.pool, level)
    backend.plan(contract_step.metadata)
    out = backend.forward(0, contract_step.q, contract_step.k, contract_step.v)
    assert (out.double() - contract_step.expected).abs().max() < 1e-5


@at_every_level
def test_rows_may_lie_in_the_fused_projection(level: str) -> None:
    config = make_config()
    step = make_step(config, LONG)
    fused = torch.cat([step.q, step.k, step.v], 1)
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    backend = CpuBackend(config, step.pool, level)
    backend.plan(step.metadata)
    assert (backend.forward(0, q, k, v).double() - step.expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_pool_without_kernels_is_refused(dtype: torch.dtype) -> None:
    config = make_config()
    with pytest.raises(ConfigError, match=f"no kernels for {dtype}"):
        CpuBackend(config, KVPool(config, 4, dtype))


def test_too_large_a_head_is_refused() -> None:
    config = make_config(head_dim=576)
    with pytest.raises(ConfigError, match="head_dim is 576"):
        CpuBackend(config, KVPool(config, 4, torch.float32))
