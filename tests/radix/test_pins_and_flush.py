"""Pins keep a prefix, within a share of the pool; a flush drops all that nobody holds."""

import numpy as np
import pytest

from tests.radix.factories import begin, cached, count_up, evict, make_cache, serve
from trunkline.radix.errors import PinError

SALT = ("salt", "x")


def test_a_pinned_prefix_survives_eviction_and_flush() -> None:
    cache = make_cache(page_size=4, num_pages=16)
    serve(cache, count_up(0, 40))
    pin = cache.pin(count_up(0, 22))
    assert pin.num_tokens == 20
    evict(cache, cache.pool.num_evictable)
    assert cached(cache, count_up(0, 40)) == 20
    assert cache.flush() == 0
    cache.check()
    cache.unpin(pin)
    cache.check()
    assert cache.flush() == 5


def test_unpinning_twice_is_refused() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 8))
    pin = cache.pin(count_up(0, 8))
    cache.unpin(pin)
    with pytest.raises(PinError, match="pin 1 of 8 tokens"):
        cache.unpin(pin)


def test_a_pin_lets_go_when_its_time_is_over() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 8))
    cache.pin(count_up(0, 8), now=100.0, ttl=5.0)
    cache.pin(count_up(0, 4))
    assert cache.expire_pins(now=104.9) == 0
    assert cache.stats().num_pinned_pages == 2
    assert cache.expire_pins(now=105.0) == 1
    assert cache.stats().num_pinned_pages == 1
    cache.check()


def test_pins_cannot_hold_more_than_their_share_and_count_shared_pages_once() -> None:
    cache = make_cache(page_size=4, num_pages=16, max_pinned_share=0.25)
    serve(cache, count_up(0, 24))
    cache.pin(count_up(0, 12))
    cache.pin(count_up(0, 16))
    assert cache.stats().num_pinned_pages == 4
    before = cache.snapshot()
    with pytest.raises(PinError, match="would make 5 pinned, 4 are allowed"):
        cache.pin(count_up(0, 20))
    assert cache.snapshot() == before


def test_nothing_cached_cannot_be_pinned() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 3))
    with pytest.raises(PinError, match="no whole page of the 3 tokens is cached"):
        cache.pin(count_up(0, 3))


def test_pinning_is_not_a_hit() -> None:
    cache = make_cache(page_size=4)
    serve(cache, count_up(0, 8))
    cache.pin(count_up(0, 8))
    assert cache.stats().num_lookups == 1


def test_a_flush_keeps_what_is_in_use_and_can_be_of_one_namespace() -> None:
    cache = make_cache(page_size=4, num_pages=32)
    serve(cache, count_up(0, 16), SALT)
    serve(cache, count_up(0, 16))
    serve(cache, np.append(count_up(0, 8), 900 + count_up(0, 8)).astype(np.int32))
    running = begin(cache, count_up(0, 12))
    assert cache.flush(SALT) == 4
    cache.check()
    assert cached(cache, count_up(0, 16), SALT) == 0
    assert cache.flush() == 3
    cache.check()
    assert cached(cache, count_up(0, 16)) == 12
    cache.release(running)
    assert cache.flush() == 3
    assert cache.pool.num_free == 32
    assert (cache.stats().num_flushed_pages, cache.stats().num_evicted_pages) == (10, 0)
