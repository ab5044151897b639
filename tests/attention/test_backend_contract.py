"""What every attention backend must do. Other modules import these tests and give them a `subject` of their own."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.attention.steps import make_config
from tests.attention.subjects import TOLERANCE, Subject
from trunkline.attention import (
    AttentionConfig,
    AttentionMetadata,
    KVPool,
    MetadataError,
    UnknownBackend,
    make_backend,
)
from trunkline.errors import ConfigError

BACKENDS = ["reference", "torch"]

MIXES = {
    "one first token": [(0, 1)],
    "whole prompts": [(0, 5), (0, 16), (0, 37), (0, 16)],
    "decodes": [(0, 1), (15, 1), (16, 1), (48, 1), (70, 1), (33, 1)],
    "chunks": [(16, 7), (48, 20), (3, 33), (64, 16)],
    "all at once": [(47, 1), (0, 19), (16, 16), (31, 1), (5, 2), (63, 1), (0, 1), (48, 19)],
}


@pytest.fixture(params=BACKENDS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param, partial(make_backend, request.param))


@pytest.mark.parametrize("shared", [0, 16, 48])
@pytest.mark.parametrize("mix", MIXES)
def test_answers_equal_dense_attention(subject: Subject, mix: str, shared: int) -> None:
    config = make_config()
    subject.check(config, subject.step(config, MIXES[mix], shared=shared, seed=shared))


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("group", range(1, 9))
def test_every_group_and_head_size(subject: Subject, group: int, head_dim: int) -> None:
    kv_heads = 1 + group % 3
    config = make_config(num_heads=group * kv_heads, num_kv_heads=kv_heads, head_dim=head_dim)
    if subject.head_dims is not None and head_dim not in subject.head_dims:
        with pytest.raises(ConfigError, match=f"head_dim is {head_dim}"):
            subject.make(config, KVPool(config, 8, subject.dtype, subject.device))
        return
    subject.check(config, subject.step(config, [(18, 1), (0, 9), (16, 5), (2, 1)], seed=group))


@pytest.mark.parametrize("page_size", [1, 4, 32])
def test_every_page_size(subject: Subject, page_size: int) -> None:
    config = make_config(page_size=page_size)
    subject.check(config, subject.step(config, MIXES["all at once"], shared=32, seed=page_size))


@pytest.mark.parametrize("window", [1, 4, 5, 16, 17, 1000])
@pytest.mark.parametrize("mix", MIXES)
def test_a_window_hides_what_lies_further_back(subject: Subject, mix: str, window: int) -> None:
    config = make_config(window=window)
    subject.check(config, subject.step(config, MIXES[mix], shared=16, seed=window))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("mix", MIXES)
def test_logits_are_capped(subject: Subject, mix: str, window: int | None) -> None:
    config = make_config(soft_cap=1.5, window=window)
    subject.check(config, subject.step(config, MIXES[mix]))


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("mix", MIXES)
def test_bfloat16(subject: Subject, mix: str, soft_cap: float | None) -> None:
    config = make_config(num_heads=9, num_kv_heads=3, soft_cap=soft_cap)
    subject.check(config, subject.step(config, MIXES[mix], dtype=torch.bfloat16))


@pytest.mark.parametrize("seed", range(12))
def test_random_steps(subject: Subject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = make_config(
        num_heads=6,
        num_kv_heads=int(rng.choice([1, 2, 3, 6])),
        page_size=int(rng.choice([2, 8, 16])),
        window=rng.choice([None, 3, 20]),
    )
    mix = [
        (int(rng.integers(0, 90)), int(rng.choice([1, 1, 1, 2, 8, 30]))) for _ in range(rng.integers(1, 14))
    ]
    subject.check(config, subject.step(config, mix, shared=32, seed=seed))


@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (9, None), (None, 1.5)])
@pytest.mark.parametrize("mix", MIXES)
def test_a_mask_takes_the_place_of_causality(
    subject: Subject, mix: str, window: int | None, soft_cap: float | None
) -> None:
    config = make_config(window=window, soft_cap=soft_cap)
    step = subject.step(config, MIXES[mix], shared=16, masked=True)
    if subject.masks:
        subject.check(config, step)
    else:
        with pytest.raises(MetadataError, match=f"the {subject.name} backend takes no masks"):
            subject.answer(config, step)


@pytest.mark.parametrize("norm", [False, True])
def test_fused_rows_are_normalised_rotated_and_attended(subject: Subject, norm: bool) -> None:
    config = make_config(num_heads=4, num_kv_heads=2)
    step = subject.step(config, MIXES["all at once"], shared=16)
    qkv = torch.cat([step.q, step.k, step.v], 1)
    angles = torch.outer(torch.arange(100.0), 10.0 ** -torch.arange(0, 2, 2 / 32)).to(subject.device)
    cos, sin = angles.cos(), angles.sin()
    weight = torch.linspace(0.5, 1.5, 64).repeat(6, 1).to(qkv) if norm else None
    backend = subject.make(config, step.pool)
    backend.plan(step.metadata)
    out = backend.forward_fused(0, qkv.clone(), cos, sin, weight, 1e-5)

    rows = qkv[:, :6].double()
    if weight is not None:
        rows = rows * (rows.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    at = torch.from_numpy(step.metadata.positions).to(subject.device)
    c, s = cos[at, None].double(), sin[at, None].double()
    first, second = rows.chunk(2, -1)
    rows = torch.cat([first * c - second * s, second * c + first * s], -1).to(qkv.dtype)
    oracle = make_backend("reference", config, step.pool)
    oracle.plan(step.metadata)
    expected = oracle.forward(0, rows[:, :4], rows[:, 4:], step.v)
    torch.testing.assert_close(out, expected, rtol=0, atol=3 * TOLERANCE[subject.dtype])


def test_very_uneven_lengths_are_answered(subject: Subject) -> None:
    config = make_config(num_heads=2, num_kv_heads=1)
    subject.check(config, subject.step(config, [(1500, 1), (0, 1), (700, 1), (3, 1), (1499, 1), (40, 1)]))


def test_layers_keep_their_own_windows_and_pages(subject: Subject) -> None:
    config = AttentionConfig(3, 4, 2, 64, 16, scale=0.125, sliding_window=(None, 7, None))
    for layer in range(3):
        subject.check(config, subject.step(config, MIXES["all at once"], layer=layer, seed=layer), layer)


def test_the_scale_is_the_configs(subject: Subject) -> None:
    config = AttentionConfig(1, 4, 2, 64, 16, scale=0.02)
    subject.check(config, subject.step(config, MIXES["all at once"]))


def test_a_request_gets_the_same_answer_alone_and_in_company(subject: Subject) -> None:
    config = make_config()
    step = subject.step(config, MIXES["all at once"], shared=16)
    together = subject.answer(config, step)
    indptr, tables = step.metadata.qo_indptr, step.metadata.kv_indptr
    for i, (start, length) in enumerate(MIXES["all at once"]):
        rows = slice(indptr[i], indptr[i + 1])
        table = step.metadata.kv_indices[tables[i] : tables[i + 1]]
        alone = AttentionMetadata.build([start], [length], [table], config.page_size)
        backend = subject.make(config, step.pool)
        backend.plan(alone)
        out = backend.forward(0, step.q[rows], step.k[rows], step.v[rows])
        torch.testing.assert_close(out, together[rows], rtol=0, atol=TOLERANCE[subject.dtype] / 5)


def test_only_the_steps_slots_of_the_layer_are_written(subject: Subject) -> None:
    config = make_config(num_layers=2)
    step = subject.step(config, MIXES["all at once"], layer=1)
    before = step.pool.data.clone()
    subject.answer(config, step, layer=1)
    after = step.pool.data.clone()
    slots = torch.from_numpy(step.metadata.slot_mapping)
    assert torch.equal(step.pool.k[1].flatten(0, 1)[slots], step.k)
    assert torch.equal(step.pool.v[1].flatten(0, 1)[slots], step.v)
    for data in (before, after):
        data[:, 1].flatten(1, 2)[:, slots] = 0.0
    assert torch.equal(before.nan_to_num(7e7), after.nan_to_num(7e7))


def test_a_backend_serves_one_step_after_another(subject: Subject) -> None:
    config = make_config()
    first = subject.step(config, [(0, 20), (0, 3)])
    backend = subject.make(config, first.pool)
    backend.plan(first.metadata)
    backend.forward(0, first.q, first.k, first.v)
    table = first.metadata.kv_indices[:2]
    backend.plan(AttentionMetadata.build([20], [1], [table], 16))
    q, k, v = first.q[:1], first.k[:1] + 1, first.v[:1] + 1
    out = backend.forward(0, q, k, v)
    oracle = make_backend("reference", config, first.pool)
    oracle.plan(AttentionMetadata.build([20], [1], [table], 16))
    torch.testing.assert_close(out, oracle.forward(0, q, k, v), rtol=0, atol=TOLERANCE[subject.dtype])


@pytest.mark.parametrize("page", [-1, 0, 9])
def test_a_page_outside_the_pool_is_refused(subject: Subject, page: int) -> None:
    config = make_config()
    backend = subject.make(config, KVPool(config, 8, subject.dtype, subject.device))
    step = AttentionMetadata.build([16], [1], [np.array([page, 1], np.int32)], 16)
    with pytest.raises(MetadataError, match=rf"page {page} is not within 1\.\.8"):
        backend.plan(step)


def test_a_step_with_other_pages_than_the_pools_is_refused(subject: Subject) -> None:
    config = make_config()
    backend = subject.make(config, KVPool(config, 8, subject.dtype, subject.device))
    with pytest.raises(MetadataError, match="the step has pages of 8, the KV pool of 16"):
        backend.plan(AttentionMetadata.build([0], [1], [np.array([1], np.int32)], 8))


def test_a_pool_made_for_another_model_is_refused(subject: Subject) -> None:
    pool = KVPool(make_config(num_kv_heads=2), 8, subject.dtype, subject.device)
    with pytest.raises(ConfigError, match="num_kv_heads is 4, the KV pool was made for 2"):
        subject.make(make_config(num_kv_heads=4), pool)


def test_int8_pages_are_refused_by_name(subject: Subject) -> None:
    config = make_config()
    with pytest.raises(ConfigError, match=r"a KV pool of torch\.int8 needs the cpu backend"):
        subject.make(config, KVPool(config, 8, torch.int8))


def test_an_unknown_backend_is_named() -> None:
    config = make_config()
    with pytest.raises(
        UnknownBackend, match=r"no attention backend 'tea'; there are cpu, flashinfer, reference, torch"
    ):
        make_backend("tea", config, KVPool(config, 8, torch.float32))
