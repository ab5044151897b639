"""Random steps over a poisoned KV pool, with what attention must answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tests.oracle.attention_dense import dense_attention
from trunkline.attention import AttentionConfig, AttentionMetadata, KVPool


def make_config(
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    page_size: int = 16,
    num_layers: int = 1,
    window: int | None = None,
    soft_cap: float | None = None,
) -> AttentionConfig:
    """An attention config whose layers all have the same window."""
    return AttentionConfig(
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        scale=head_dim**-0.5,
        sliding_window=None if window is None else (window,) * num_layers,
        logits_soft_cap=soft_cap,
    )


@dataclass(frozen=True)
class Step:
    """One step: what a backend is given, the pool it works on, and the expected answer (float64)."""

    metadata: AttentionMetadata
    pool: KVPool
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    expected: torch.Tensor


def make_step(
    config: AttentionConfig,
    requests: Sequence[tuple[int, int]],
    *,
    layer: int = 0,
    shared: int = 0,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    seed: int = 0,
    masked: bool = False,
    device: str = "cpu",
) -> Step:
    """Requests (tokens in the pool, new tokens) with shuffled pages.

    Requests with at least `shared` tokens in the pool share the pages of their first `shared`, as a radix
    tree would have it (`shared` is a multiple of the page size). Every slot that holds no key is NaN. With `masked`
    each request has a random mask instead of causality. Keys and values of int8 (`kv_dtype`) are answered as rounded.
    """
    rng = np.random.default_rng(seed)
    size = config.page_size
    needed = [-(-(start + length) // size) for start, length in requests]
    numbers = rng.permutation(np.arange(1, sum(needed) + shared // size + 3)).astype(np.int32)
    pool = KVPool(config, len(numbers), kv_dtype or dtype)
    poison(pool)

    trunk_pages, numbers = np.split(numbers, [shared // size])
    trunk = _random(rng, dtype, 2, shared, config.num_kv_heads, config.head_dim)
    tables, masks, q, k, v, expected = [], [], [], [], [], []
    for (start, length), count in zip(requests, needed, strict=True):
        history = _random(rng, dtype, 2, start + length, config.num_kv_heads, config.head_dim)
        table, numbers = np.split(numbers, [count])
        if start >= shared:
            history[:, :shared] = trunk
            table[: shared // size] = trunk_pages
        for position in range(start):
            page, offset = table[position // size], position % size
            put(pool, layer, page, offset, history[:, position])
        queries = _random(rng, dtype, length, config.num_heads, config.head_dim)
        tables.append(table)
        q.append(queries)
        k.append(history[0, start:])
        v.append(history[1, start:])
        wide = [
            part.double().numpy() for part in (queries, *(history if kv_dtype is None else rounded(history)))
        ]
        mask = _random_mask(rng, length, start + length) if masked else None
        masks.append(mask)
        answer = dense_attention(*wide, config.scale, config.window(layer), config.logits_soft_cap, mask)
        expected.append(torch.from_numpy(answer))
    starts, lengths = zip(*requests, strict=True)
    if device != "cpu":
        on_device = KVPool(config, pool.num_pages, dtype, device)
        on_device.data.copy_(pool.data)
        pool = on_device
    return Step(
        AttentionMetadata.build(starts, lengths, tables, size, masks if masked else None),
        pool,
        torch.cat(q).to(device),
        torch.cat(k).to(device),
        torch.cat(v).to(device),
        torch.cat(expected),
    )


def poison(pool: KVPool) -> None:
    """NaN in every slot; where keys and values are int8, as their scales."""
    pool.data.fill_(-1 if pool.dtype == torch.int8 else torch.nan)


def put(pool: KVPool, layer: int, page: int, offset: int, rows: torch.Tensor) -> None:
    """Writes the keys and values [2, num_kv_heads, head_dim] of one token."""
    if pool.dtype == torch.int8:
        rows, scales = to_int8(rows)
        pool.k_scales[layer][page, :, offset], pool.v_scales[layer][page, :, offset] = scales.squeeze(-1)
    pool.k[layer][page, offset], pool.v[layer][page, offset] = rows


def to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as whole multiples of 1/127 of their largest magnitude, and those [..., 1]."""
    scales = x.float().abs().amax(-1, keepdim=True) / 127
    return (x.float() * (1 / scales)).round().to(torch.int8), scales


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x, float64, as int8 has it."""
    whole, scales = to_int8(x)
    return whole.double() * scales.double()


def _random_mask(rng: np.random.Generator, num_queries: int, num_keys: int) -> np.ndarray:
    """Each token sees itself and two thirds of what lies before it, as in a tree of drafts."""
    mask = rng.random((num_queries, num_keys)) < 2 / 3
    mask &= np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
    mask[np.arange(num_queries), np.arange(num_keys - num_queries, num_keys)] = True
    return mask


def _random(rng: np.random.Generator, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)
