"""What every attention backend must do; another one joins by its name in BACKENDS."""

import numpy as np
import pytest
import torch

from tests.attention.steps import Step, make_config, make_step
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
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}

MIXES = {
    "one first token": [(0, 1)],
    "whole prompts": [(0, 5), (0, 16), (0, 37), (0, 16)],
    "decodes": [(0, 1), (15, 1), (16, 1), (48, 1), (70, 1), (33, 1)],
    "chunks": [(16, 7), (48, 20), (3, 33), (64, 16)],
    "all at once": [(47, 1), (0, 19), (16, 16), (31, 1), (5, 2), (63, 1), (0, 1), (48, 19)],
}


@pytest.fixture(params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def answer(name: str, config: AttentionConfig, step: Step, layer: int = 0) -> torch.Tensor:
    backend = make_backend(name, config, step.pool)
    backend.plan(step.metadata)
    return backend.forward(layer, step.q, step.k, step.v)


def check(name: str, config: AttentionConfig, step: Step, layer: int = 0) -> None:
    out = answer(name, config, step, layer)
    assert out.shape == step.q.shape
    assert out.dtype == step.q.dtype
    difference = (out.double() - step.expected).abs()
    token, head, _ = np.unravel_index(int(difference.nan_to_num(torch.inf).argmax()), difference.shape)
    print(f"{name}: largest difference {difference.max():.2e} at token {token}, head {head}")
    assert difference.max() <= TOLERANCE[step.q.dtype]


@pytest.mark.parametrize("shared", [0, 16, 48])
@pytest.mark.parametrize("mix", MIXES)
def test_answers_equal_dense_attention(name: str, mix: str, shared: int) -> None:
    config = make_config()
    check(name, config, make_step(config, MIXES[mix], shared=shared, seed=shared))


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("group", range(1, 9))
def test_every_group_and_head_size(name: str, group: int, head_dim: int) -> None:
    kv_heads = 1 + group % 3
    config = make_config(num_heads=group * kv_heads, num_kv_heads=kv_heads, head_dim=head_dim)
    check(name, config, make_step(config, [(18, 1), (0, 9), (16, 5), (2, 1)], seed=group))


@pytest.mark.parametrize("page_size", [1, 4, 32])
def test_every_page_size(name: str, page_size: int) -> None:
    config = make_config(page_size=page_size)
    check(name, config, make_step(config, MIXES["all at once"], shared=32, seed=page_size))


@pytest.mark.parametrize("window", [1, 4, 5, 16, 17, 1000])
@pytest.mark.parametrize("mix", MIXES)
def test_a_window_hides_what_lies_further_back(name: str, mix: str, window: int) -> None:
    config = make_config(window=window)
    check(name, config, make_step(config, MIXES[mix], shared=16, seed=window))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("mix", MIXES)
def test_logits_are_capped(name: str, mix: str, window: int | None) -> None:
    config = make_config(soft_cap=1.5, window=window)
    check(name, config, make_step(config, MIXES[mix]))


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("mix", MIXES)
def test_bfloat16(name: str, mix: str, soft_cap: float | None) -> None:
    config = make_config(num_heads=9, num_kv_heads=3, soft_cap=soft_cap)
    check(name, config, make_step(config, MIXES[mix], dtype=torch.bfloat16))


@pytest.mark.parametrize("seed", range(12))
def test_random_steps(name: str, seed: int) -> None:
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
    check(name, config, make_step(config, mix, shared=32, seed=seed))


def test_very_uneven_lengths_are_answered(name: str) -> None:
    config = make_config(num_heads=2, num_kv_heads=1)
    check(name, config, make_step(config, [(1500, 1), (0, 1), (700, 1), (3, 1), (1499, 1), (40, 1)]))


def test_layers_keep_their_own_windows_and_pages(name: str) -> None:
    config = AttentionConfig(3, 4, 2, 64, 16, scale=0.125, sliding_window=(None, 7, None))
    for layer in range(3):
        check(name, config, make_step(config, MIXES["all at once"], layer=layer, seed=layer), layer)


def test_the_scale_is_the_configs(name: str) -> None:
    config = AttentionConfig(1, 4, 2, 64, 16, scale=0.02)
    check(name, config, make_step(config, MIXES["all at once"]))


def test_a_request_gets_the_same_answer_alone_and_in_company(name: str) -> None:
    config = make_config()
    step = make_step(config, MIXES["all at once"], shared=16)
    together = answer(name, config, step)
    indptr, tables = step.metadata.qo_indptr, step.metadata.kv_indptr
    for i, (start, length) in enumerate(MIXES["all at once"]):
        rows = slice(indptr[i], indptr[i + 1])
        table = step.metadata.kv_indices[tables[i] : tables[i + 1]]
        alone = AttentionMetadata.build([start], [length], [table], config.page_size)
        backend = make_backend(name, config, step.pool)
        backend.plan(alone)
        out = backend.forward(0, step.q[rows], step.k[rows], step.v[rows])
        torch.testing.assert_close(out, together[rows], rtol=0, atol=2e-6)


def test_only_the_steps_slots_of_the_layer_are_written(name: str) -> None:
    config = make_config(num_layers=2)
    step = make_step(config, MIXES["all at once"], layer=1)
    before = step.pool.data.clone()
    answer(name, config, step, layer=1)
    after = step.pool.data.clone()
    slots = torch.from_numpy(step.metadata.slot_mapping)
    assert torch.equal(step.pool.k[1].flatten(0, 1)[slots], step.k)
    assert torch.equal(step.pool.v[1].flatten(0, 1)[slots], step.v)
    for data in (before, after):
        data[:, 1].flatten(1, 2)[:, slots] = 0.0
    assert torch.equal(before.nan_to_num(7e7), after.nan_to_num(7e7))


def test_a_backend_serves_one_step_after_another(name: str) -> None:
    config = make_config()
    first = make_step(config, [(0, 20), (0, 3)])
    backend = make_backend(name, config, first.pool)
    backend.plan(first.metadata)
    backend.forward(0, first.q, first.k, first.v)
    table = first.metadata.kv_indices[:2]
    backend.plan(AttentionMetadata.build([20], [1], [table], 16))
    q, k, v = first.q[:1], first.k[:1] + 1, first.v[:1] + 1
    out = backend.forward(0, q, k, v)
    oracle = make_backend("reference", config, first.pool)
    oracle.plan(AttentionMetadata.build([20], [1], [table], 16))
    torch.testing.assert_close(out, oracle.forward(0, q, k, v), rtol=0, atol=1e-5)


@pytest.mark.parametrize("page", [-1, 0, 9])
def test_a_page_outside_the_pool_is_refused(name: str, page: int) -> None:
    config = make_config()
    backend = make_backend(name, config, KVPool(config, 8, torch.float32))
    step = AttentionMetadata.build([16], [1], [np.array([page, 1], np.int32)], 16)
    with pytest.raises(MetadataError, match=rf"page {page} is not within 1\.\.8"):
        backend.plan(step)


def test_a_step_with_other_pages_than_the_pools_is_refused(name: str) -> None:
    config = make_config()
    backend = make_backend(name, config, KVPool(config, 8, torch.float32))
    with pytest.raises(MetadataError, match="the step has pages of 8, the KV pool of 16"):
        backend.plan(AttentionMetadata.build([0], [1], [np.array([1], np.int32)], 8))


def test_a_pool_made_for_another_model_is_refused(name: str) -> None:
    pool = KVPool(make_config(num_kv_heads=2), 8, torch.float32)
    with pytest.raises(ConfigError, match="num_kv_heads is 4, the KV pool was made for 2"):
        make_backend(name, make_config(num_kv_heads=4), pool)


def test_an_unknown_backend_is_named() -> None:
    config = make_config()
    with pytest.raises(UnknownBackend, match=r"no attention backend 'tea'; there are cpu, reference, torch"):
        make_backend("tea", config, KVPool(config, 8, torch.float32))
