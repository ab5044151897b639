"""Memory is behind KV pages before requests write them, and not behind the whole pool."""

import os
from typing import Any

import pytest
import torch

from tests.attention.resident import give_back_freed_memory, needs_populate, resident_bytes
from tests.attention.steps import make_config
from tests.runtime.engines import GREEDY, make_engine, random_prompt
from trunkline.attention import KVPool
from trunkline.radix import PagePool
from trunkline.runtime.engine import backing
from trunkline.runtime.engine.backing import Backing
from trunkline.runtime.engine.wire import Ready, decode_from_engine
from trunkline.runtime.engine.worker import IDLE_POLL_MS, Worker

MIB = 1 << 20
LARGE_PAGE = 2 * MIB
ROUNDING = 4 * (MIB // 4 + 2 * LARGE_PAGE)  # in each area a piece, and a large page at both ends
NUM_PAGES = 8191  # of 16 KiB: 128 MiB
CONFIG = make_config(num_layers=2, head_dim=64, page_size=16)


@pytest.fixture(autouse=True)
def small_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back_freed_memory()
    monkeypatch.setattr(backing, "LEAD_BYTES", 8 * MIB)
    monkeypatch.setattr(backing, "PIECE_BYTES", MIB // 4)


def parts(num_pages: int = NUM_PAGES) -> tuple[KVPool, PagePool, Backing]:
    kv_pool, pages = KVPool(CONFIG, num_pages, torch.bfloat16), PagePool(num_pages, 16)
    assert KVPool.page_bytes(CONFIG, torch.bfloat16) == 16 << 10
    return kv_pool, pages, Backing(kv_pool, pages)


def advance(part: Backing) -> int:
    """Until it has enough; how often that was."""
    count = 0
    while part.advance():
        count += 1
    return count


def are_resident(kv_pool: KVPool, first: int, last: int) -> list[bool]:
    """For the keys and the values of each layer, whether pages first..last have all their memory."""
    stretches = kv_pool.data.flatten(0, 1)[:, first : last + 1]
    return [resident_bytes(stretch) >= stretch.nbytes for stretch in stretches]


@needs_populate
def test_the_lead_is_backed_in_every_layer_and_no_more() -> None:
    kv_pool, _, part = parts()
    assert advance(part) > 0
    assert are_resident(kv_pool, 0, 8 * 64) == [True] * 4
    assert resident_bytes(kv_pool.data) <= 8 * MIB + ROUNDING
    assert advance(part) == 0


@needs_populate
def test_the_front_moves_with_the_highest_page() -> None:
    kv_pool, pages, part = parts()
    advance(part)
    assert are_resident(kv_pool, 600, 1512) == [False] * 4
    pages.allocate(1000)
    advance(part)
    assert are_resident(kv_pool, 1001, 1512) == [True] * 4
    assert resident_bytes(kv_pool.data) <= 24 * MIB + ROUNDING


@needs_populate
def test_pages_that_are_used_already_are_passed_over() -> None:
    kv_pool, pages, part = parts()
    pages.allocate(4000)
    advance(part)
    assert resident_bytes(kv_pool.data[0, 0, :3400]) <= LARGE_PAGE  # malloc's own
    assert are_resident(kv_pool, 4001, 4512) == [True] * 4


def test_a_pool_smaller_than_the_lead_is_backed_once() -> None:
    _, pages, part = parts(num_pages=10)
    assert advance(part) == 4
    pages.allocate(10)
    assert advance(part) == 0


def test_pages_on_a_device_are_not_its_concern() -> None:
    kv_pool = KVPool(CONFIG, 10, torch.bfloat16, "meta")
    assert advance(Backing(kv_pool, PagePool(10, 16))) == 0


@needs_populate
def test_requests_write_pages_that_an_engine_has_backed() -> None:
    engine = make_engine(tokens=16 * NUM_PAGES)
    data = engine.runner._kv_pool.data
    assert resident_bytes(data) <= LARGE_PAGE
    while engine.back_pages():
        pass
    backed = resident_bytes(data)
    assert backed >= 8 * MIB
    engine.generate([random_prompt(500, seed=number) for number in range(16)], GREEDY)
    assert engine.cache.pool.highest >= 500
    assert resident_bytes(data) == backed


class Stop(Exception):
    pass


class Socket:
    """Writes down what a worker sends and when it sleeps; the second time ends it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def send(self, message: bytes) -> None:
        assert isinstance(decode_from_engine(message), Ready)
        self.log.append("ready")

    def poll(self, timeout: int) -> int:
        if timeout == IDLE_POLL_MS:
            if self.log[-1] == "sleep":
                raise Stop
            self.log.append("sleep")
        return 0


def test_a_worker_backs_pages_before_it_is_ready_and_before_it_sleeps() -> None:
    log: list[str] = []
    left = [2, 1]  # pieces before it is ready, then before it sleeps
    engine: Any = make_engine(tokens=256)

    def back_pages() -> bool:
        if not left or not left[0]:
            del left[:1]
            return False
        left[0] -= 1
        log.append("back")
        return True

    engine.back_pages = back_pages
    socket: Any = Socket(log)
    with pytest.raises(Stop):
        Worker(engine, socket, os.getppid()).serve()
    assert log == ["back", "back", "ready", "back", "sleep"]
