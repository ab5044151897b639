import numpy as np
import pytest
import torch

from tests.attention.recorded_streams import RecordedStreams
from tests.attention.steps import make_config
from trunkline.attention import (
    AttentionConfig,
    AttentionMetadata,
    HostPool,
    KVPool,
    PageCopyError,
    make_backend,
)
from trunkline.errors import ConfigError


def numbered_pool(num_pages: int = 6) -> KVPool:
    """A pool in which every slot of a page holds the page's number."""
    pool = KVPool(make_config(num_layers=2, head_dim=4, page_size=2), num_pages, torch.float32)
    pool.data.copy_(torch.arange(num_pages + 1.0).view(1, 1, -1, 1, 1, 1).expand_as(pool.data))
    return pool


def pairs(*rows: tuple[int, int]) -> np.ndarray:
    return np.array(rows, np.int32).reshape(-1, 2)


def contents(pool: KVPool) -> list[float]:
    """The number each page holds, equal in all of its slots."""
    flat = pool.data.movedim(2, 0).flatten(1)
    assert (flat == flat[:, :1]).all()
    return flat[:, 0].tolist()


def test_keys_and_values_are_pages_of_slots_of_heads() -> None:
    pool = KVPool(make_config(num_layers=2, num_kv_heads=2, head_dim=80), 6, torch.bfloat16)
    assert len(pool.k) == len(pool.v) == 2
    assert pool.k[0].shape == pool.v[1].shape == (7, 16, 2, 80)
    assert KVPool.page_bytes(pool.config, pool.dtype) == 2 * 2 * 16 * 2 * 80 * 2
    assert pool.data.nbytes == 7 * KVPool.page_bytes(pool.config, pool.dtype)


def test_tokens_are_stored_at_their_slots() -> None:
    pool = numbered_pool()
    k, v = torch.full((2, 2, 4), -1.0), torch.full((2, 2, 4), -2.0)
    pool.store(1, torch.tensor([3 * 2 + 1, 5 * 2]), k, v)
    assert pool.k[1][:, :, 0, 0].tolist() == [[0, 0], [1, 1], [2, 2], [3, -1], [4, 4], [-1, 5], [6, 6]]
    assert pool.v[1][:, :, 1, 3].tolist() == [[0, 0], [1, 1], [2, 2], [3, -2], [4, 4], [-2, 5], [6, 6]]
    assert (pool.k[0][3] == 3).all()


def test_pages_are_copied_in_every_layer() -> None:
    pool = numbered_pool()
    pool.copy_pages(pairs((2, 5), (2, 6)))
    assert contents(pool) == [0, 1, 2, 3, 4, 2, 2]


def test_rows_of_int8_have_their_scales_in_the_page() -> None:
    config = make_config(num_heads=3, num_kv_heads=3, head_dim=5, page_size=1, num_layers=2)
    pool = KVPool(config, 6, torch.int8)
    assert pool.k[1].shape == pool.v[0].shape == (7, 1, 3, 5)
    assert pool.k_scales[1].shape == pool.v_scales[0].shape == (7, 3, 1)
    assert KVPool.page_bytes(config, torch.int8) == 2 * 2 * (16 + 3 * 4)  # 15 bytes, on to a whole float
    assert pool.data.nbytes == 7 * KVPool.page_bytes(config, torch.int8)
    for part, number in ((pool.k[1], 2), (pool.v[1], 3), (pool.k_scales[1], 0.4), (pool.v_scales[1], 0.5)):
        part[2] = number
    host = HostPool(pool, 3)
    host.swap_out(pairs((2, 1)))
    pool.data[:, :, 2] = 0
    host.swap_in(pairs((1, 6)))
    pool.copy_pages(pairs((6, 4)))
    for page in (6, 4):
        assert (pool.k[1][page] == 2).all()
        assert (pool.v[1][page] == 3).all()
        assert (pool.k_scales[1][page] == 0.4).all()
        assert (pool.v_scales[1][page] == 0.5).all()


def test_all_sources_are_read_before_any_page_is_written() -> None:
    pool = numbered_pool()
    pool.copy_pages(pairs((1, 2), (2, 3), (3, 1)))
    assert contents(pool) == [0, 3, 1, 2, 4, 5, 6]


def test_no_copies_change_nothing() -> None:
    pool = numbered_pool()
    pool.copy_pages(pairs())
    assert contents(pool) == [0, 1, 2, 3, 4, 5, 6]


def test_swapped_pages_come_back_at_other_numbers() -> None:
    pool = numbered_pool()
    host = HostPool(pool, 3)
    host.swap_out(pairs((4, 1), (2, 3)))
    pool.data.fill_(-1)
    host.swap_in(pairs((3, 6), (1, 5)))
    assert contents(pool) == [-1, -1, -1, -1, -1, 4, 2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 1)], r"source page 0 is not within 1\.\.6"),
        ([(1, 2), (7, 3)], r"source page 7 is not within 1\.\.6"),
        ([(1, 0)], r"destination page 0 is not within 1\.\.6"),
        ([(1, 3), (2, 3)], "page 3 is the destination of 2 copies"),
    ],
)
def test_copies_outside_the_pool_change_nothing(rows: list[tuple[int, int]], message: str) -> None:
    pool = numbered_pool()
    with pytest.raises(PageCopyError, match=message):
        pool.copy_pages(pairs(*rows))
    assert contents(pool) == [0, 1, 2, 3, 4, 5, 6]


def test_each_layer_is_awaited_for_itself_and_once() -> None:
    pool = numbered_pool()
    arrived: list[list[bool]] = []
    streams = RecordedStreams(
        lambda _: arrived.append([bool((pool.data[:, n, 5] == 4).all()) for n in range(2)])
    )
    host = HostPool(pool, 3, streams)
    host.swap_out(pairs((4, 2)))
    streams.log.clear()
    arrived.clear()
    host.swap_in(pairs((2, 5)))
    assert arrived == [[True, False], [True, True]]
    assert [(stream, what) for stream, what, _ in streams.log] == [("side", "record")] * 2
    first, second = (event for _, _, event in streams.log)
    streams.log.clear()
    pool.await_layer(1)
    pool.await_layer(1)
    pool.await_layers()
    assert streams.log == [("main", "wait", second), ("main", "wait", first)]


def test_pages_may_be_written_once_they_are_gathered_for_the_host() -> None:
    pool = numbered_pool()
    copied: list[bool] = []
    streams = RecordedStreams(lambda _: copied.append(bool((host.data[:, :, 1] == 3).all())))
    host = HostPool(pool, 2, streams)
    host.data.zero_()
    host.swap_out(pairs((3, 1)))
    assert copied == [False]
    assert [(stream, what) for stream, what, _ in streams.log] == [("side", "record"), ("main", "wait")]
    assert (host.data[:, :, 1] == 3).all()


def test_page_copies_wait_for_pages_on_their_way() -> None:
    pool, streams = numbered_pool(), RecordedStreams()
    host = HostPool(pool, 2, streams)
    host.swap_out(pairs((3, 1)))
    host.swap_in(pairs((1, 5)))
    streams.log.clear()
    pool.copy_pages(pairs((5, 6)))
    assert [what for _, what, _ in streams.log] == ["wait", "wait"]


def test_backends_wait_for_the_layer_they_run() -> None:
    for name in ("reference", "torch"):
        pool, streams = numbered_pool(), RecordedStreams()
        backend = make_backend(name, pool.config, pool)
        host = HostPool(pool, 2, streams)
        host.swap_out(pairs((3, 1)))
        host.swap_in(pairs((1, 5)))
        streams.log.clear()
        backend.plan(AttentionMetadata.build([0], [1], [np.array([5], np.int32)], 2))
        for layer in range(2):
            backend.forward(layer, torch.ones(1, 4, 4), torch.ones(1, 2, 4), torch.ones(1, 2, 4))
            assert len(streams.log) == layer + 1


@pytest.mark.parametrize("seed", range(4))
def test_any_pages_come_back_from_any_places(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = numbered_pool(20)
    host = HostPool(pool, 30)
    device, places, back = (
        rng.permutation(np.arange(1, limit + 1))[:12].astype(np.int32) for limit in (20, 30, 20)
    )
    host.swap_out(np.stack([device, places], 1))
    pool.data.fill_(-1)
    order = rng.permutation(12)
    host.swap_in(np.stack([places[order], back], 1))
    expected = np.full(21, -1)
    expected[back] = device[order]
    assert contents(pool) == expected.tolist()


def test_a_swap_outside_the_host_pool_is_refused() -> None:
    host = HostPool(numbered_pool(), 3)
    with pytest.raises(PageCopyError, match=r"destination page 4 is not within 1\.\.3"):
        host.swap_out(pairs((1, 4)))
    with pytest.raises(PageCopyError, match=r"source page 4 is not within 1\.\.3"):
        host.swap_in(pairs((4, 1)))


def test_page_lists_of_another_shape_are_refused() -> None:
    with pytest.raises(PageCopyError, match=r"shape \(3,\); expected \[n, 2\]"):
        numbered_pool().copy_pages(np.array([1, 2, 3], np.int32))


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_pages is 0"):
        KVPool(make_config(), 0, torch.float32)
    with pytest.raises(ConfigError, match="num_pages is -1"):
        HostPool(numbered_pool(), -1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"page_size": -16}, "page_size is -16"),
        ({"num_heads": 5}, "num_heads 5 is no multiple of num_kv_heads 2"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"logits_soft_cap": -1.0}, "logits_soft_cap is -1.0"),
        ({"sliding_window": (4,)}, "1 sliding_window entries for 2 layers"),
        ({"sliding_window": (None, 0)}, "sliding_window of layer 1 is 0"),
    ],
)
def test_attention_settings_that_cannot_be_are_refused(setting: dict[str, object], message: str) -> None:
    shapes = {
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "page_size": 16,
        "scale": 0.125,
    }
    with pytest.raises(ConfigError, match=message):
        AttentionConfig(**(shapes | setting))
