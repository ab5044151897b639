"""What a caller must not do is refused with a name and a value, and changes nothing."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.radix.factories import array, begin, count_up, evict, make_cache, serve
from trunkline.errors import ConfigError, TrunklineError
from trunkline.radix import PagePool, PrefixCache, RadixConfig, RadixError, page_hashes
from trunkline.radix.errors import CommitError, InvalidTokens, LeaseReleased, StaleMatch, UnknownNamespace


def refused(cache: PrefixCache, error: type[RadixError], message: str, work: Callable[[], object]) -> None:
    before, counts = cache.snapshot(), cache.pool.counts.copy()
    with pytest.raises(error, match=message):
        work()
    assert cache.snapshot() == before
    assert np.array_equal(cache.pool.counts, counts)
    cache.check()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (array(*range(17), -3), "token -3 at position 17 is negative"),
        (np.array([1, 2], dtype=np.int64), "int64 array of shape \\(2,\\)"),
        (np.zeros((2, 2), dtype=np.int32), "int32 array of shape \\(2, 2\\)"),
        ([1, 2], "<class 'list'>"),
    ],
)
def test_tokens_that_are_no_int32_row_of_values_from_zero(tokens: np.ndarray, message: str) -> None:
    cache = make_cache()
    serve(cache, count_up(0, 40))
    lease = begin(cache, count_up(0, 20))
    for work in (cache.match, cache.explain, cache.pin, lambda given: cache.commit(lease, given)):
        refused(cache, InvalidTokens, message, lambda work=work: work(tokens))


@pytest.mark.parametrize("namespace", [("user", "x"), ("salt",), ("salt", 3), "salt", None])
def test_namespaces_that_are_no_pair_of_a_known_kind_and_a_value(namespace: tuple[str, str]) -> None:
    cache = make_cache()
    for work in (
        lambda: cache.match(count_up(0, 4), namespace),
        lambda: cache.lease(namespace),
        lambda: cache.pin(count_up(0, 4), namespace),
        lambda: cache.explain(count_up(0, 4), namespace),
        lambda: page_hashes(count_up(0, 4), 4, namespace),
    ):
        refused(cache, UnknownNamespace, "is not a pair", work)


def test_a_lease_that_was_released_cannot_be_used() -> None:
    cache = make_cache()
    lease = begin(cache, count_up(0, 20))
    cache.release(lease)
    for work in (
        lambda: cache.release(lease),
        lambda: cache.reserve(lease, 100),
        lambda: cache.commit(lease, count_up(0, 20)),
        lambda: cache.copied(lease),
    ):
        refused(cache, LeaseReleased, "released before", work)


def test_more_tokens_than_lie_in_the_leases_pages() -> None:
    cache = make_cache()
    lease = begin(cache, count_up(0, 32))
    work = lambda: cache.commit(lease, count_up(0, 33))  # noqa: E731
    refused(cache, CommitError, "33 tokens do not lie in 2 pages of 16", work)


def test_other_tokens_than_were_committed_before() -> None:
    cache = make_cache()
    lease = begin(cache, count_up(0, 32))
    assert cache.reserve(lease, 48)
    changed = np.append(count_up(0, 31), count_up(77, 90)).astype(np.int32)
    refused(cache, CommitError, "tokens 16..32 differ", lambda: cache.commit(lease, changed))


def test_a_match_whose_pages_were_evicted_since() -> None:
    cache = make_cache(num_pages=4)
    serve(cache, count_up(0, 40))
    match = cache.match(count_up(0, 40))
    evict(cache, 1)
    refused(cache, StaleMatch, "of 39 tokens matched .* only 32 are left", lambda: cache.acquire(match))


def test_a_match_whose_pages_were_given_to_other_tokens_since() -> None:
    cache = make_cache(num_pages=2)
    serve(cache, count_up(0, 32))
    match = cache.match(count_up(0, 33))
    evict(cache, 2)
    serve(cache, count_up(900, 932))
    assert cache.match(count_up(900, 933)).pages.tolist() == match.pages.tolist()
    refused(cache, StaleMatch, "of 32 tokens matched .* only 0 are left", lambda: cache.acquire(match))


def test_a_match_is_still_good_after_other_pages_were_evicted() -> None:
    cache = make_cache(num_pages=8)
    serve(cache, count_up(500, 532))
    serve(cache, count_up(0, 40))
    match = cache.match(count_up(0, 40))
    evict(cache, 2)
    lease = cache.acquire(match)
    assert lease.held_pages.tolist() == [*match.pages.tolist(), match.partial_page]
    cache.check()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"page_size": 0}, "page_size must be 1..1024, got 0"),
        ({"page_size": 2048}, "page_size must be 1..1024, got 2048"),
        ({"eviction_policy": "mru"}, "eviction_policy 'mru' is not one of lru"),
        ({"ghost_capacity": 0}, "ghost_capacity must be at least 1, got 0"),
        ({"max_pinned_share": 1.5}, "max_pinned_share must be between 0 and 1, got 1.5"),
        ({"default_quota": -0.1}, "default_quota must be between 0 and 1, got -0.1"),
        ({"quotas": {("salt", "x"): 2.0}}, "quota of \\('salt', 'x'\\) must be between 0 and 1, got 2.0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RadixConfig(**settings)


def test_a_quota_for_an_unknown_kind_of_namespace() -> None:
    with pytest.raises(UnknownNamespace, match="'user'"):
        RadixConfig(quotas={("user", "x"): 0.5})


def test_a_page_size_that_differs_from_the_pools() -> None:
    with pytest.raises(ConfigError, match="page_size 16 differs from the pool's 4"):
        PrefixCache(PagePool(4, 4), RadixConfig())


def test_every_error_of_the_room_is_a_trunkline_error() -> None:
    assert issubclass(RadixError, TrunklineError)
