"""Namespaces over their soft quota give up their pages first."""

from tests.radix.factories import cached, count_up, evict, make_cache, serve

A, B, C = ("tenant", "a"), ("tenant", "b"), ("tenant", "c")


def test_a_namespace_over_its_quota_is_evicted_first_and_only_down_to_it() -> None:
    cache = make_cache(page_size=2, num_pages=20, quotas={B: 0.2})
    serve(cache, count_up(0, 12), A)
    serve(cache, count_up(0, 14), B)
    evict(cache, 3)
    assert (cached(cache, count_up(0, 12), A), cached(cache, count_up(0, 14), B)) == (12, 8)
    evict(cache, 1)
    assert (cached(cache, count_up(0, 12), A), cached(cache, count_up(0, 14), B)) == (10, 8)


def test_a_quota_is_soft_while_there_is_room() -> None:
    cache = make_cache(page_size=2, num_pages=20, quotas={A: 0.1})
    serve(cache, count_up(0, 40), A)
    assert cached(cache, count_up(0, 40), A) == 40


def test_the_namespace_furthest_over_its_quota_goes_first() -> None:
    cache = make_cache(page_size=2, num_pages=20, default_quota=0.1)
    serve(cache, count_up(0, 8), A)
    serve(cache, count_up(0, 14), B)
    serve(cache, count_up(0, 4), C)
    evict(cache, 1)
    assert [cached(cache, count_up(0, 14), name) for name in (A, B, C)] == [8, 12, 4]
    evict(cache, 5)
    assert [cached(cache, count_up(0, 14), name) for name in (A, B, C)] == [6, 4, 4]


def test_a_namespace_over_its_quota_whose_pages_are_in_use_is_passed_over() -> None:
    cache = make_cache(page_size=2, num_pages=20, quotas={B: 0.1})
    serve(cache, count_up(0, 8), A)
    serve(cache, count_up(0, 8), B)
    lease = cache.acquire(cache.match(count_up(0, 9), B))
    evict(cache, 2)
    assert (cached(cache, count_up(0, 8), A), cached(cache, count_up(0, 8), B)) == (4, 8)
    cache.release(lease)
    cache.check()
    evict(cache, 1)
    assert (cached(cache, count_up(0, 8), A), cached(cache, count_up(0, 8), B)) == (4, 6)


def test_a_named_quota_goes_before_the_default_one() -> None:
    cache = make_cache(page_size=2, num_pages=20, quotas={A: 1.0}, default_quota=0.1)
    serve(cache, count_up(0, 16), A)
    serve(cache, count_up(0, 8), B)
    evict(cache, 2)
    assert (cached(cache, count_up(0, 16), A), cached(cache, count_up(0, 8), B)) == (16, 4)
