"""What a request finds of the requests before it, to the token."""

import numpy as np
import pytest

from tests.radix.factories import array, begin, cached, count_up, evict, make_cache, serve


@pytest.mark.parametrize(("length", "expected"), [(5, 4), (16, 15), (17, 16), (31, 30), (32, 31), (33, 32)])
def test_prompts_around_a_page_match_all_but_their_last_token(length: int, expected: int) -> None:
    """O01, O07: shorter than a page, exactly one, one more; with partial pages the hit is exact."""
    cache = make_cache()
    serve(cache, count_up(0, 40))
    match = cache.match(count_up(0, length))
    assert match.num_tokens == expected
    assert (len(match.pages), match.partial_tokens) == divmod(expected, 16)


@pytest.mark.parametrize("length", [1, 31, 32, 33])
def test_the_same_prompt_four_times_always_leaves_one_token_to_compute(length: int) -> None:
    """O07."""
    cache = make_cache()
    assert [serve(cache, count_up(0, length)) for _ in range(4)] == [0, *[length - 1] * 3]


def test_evicting_leaf_by_leaf_empties_the_tree_and_gives_every_page_back() -> None:
    """O01."""
    cache = make_cache(num_pages=12)
    for end in (5, 16, 17, 60):
        serve(cache, count_up(0, end))
        serve(cache, np.append(count_up(0, end // 2), 500 + count_up(0, 20)).astype(np.int32))
    while cache.pool.num_evictable:
        evict(cache, 1)
    assert (cache.pool.num_free, cache.pool.num_evictable, cache.pool.num_in_use) == (12, 0, 0)
    assert cache.tree.num_nodes == 0
    assert not cache.tree.spaces


def test_nothing_on_the_path_of_a_running_request_is_evicted() -> None:
    """O02."""
    cache = make_cache(num_pages=8)
    serve(cache, count_up(0, 32))
    serve(cache, np.append(count_up(0, 32), 900 + count_up(0, 32)).astype(np.int32))
    lease = cache.acquire(cache.match(np.append(count_up(0, 32), 900 + count_up(0, 16)).astype(np.int32)))
    path = lease.held_pages.tolist()
    assert cache.pool.counts[path].tolist() == [2, 2, 2]
    evict(cache, cache.pool.num_evictable)
    assert cached(cache, np.append(count_up(0, 32), 900 + count_up(0, 16)).astype(np.int32)) == 48
    cache.release(lease)
    assert cache.pool.counts[path].tolist() == [1, 1, 1]
    assert cache.flush() == 3
    assert cache.pool.num_free == 8


def test_requests_that_share_parts_of_one_node_leave_nothing_locked() -> None:
    """O03: 1..100 cached; one request shares 1..40, the next 1..70; afterwards everything can be evicted."""
    cache = make_cache()
    serve(cache, count_up(1, 101))
    first = begin(cache, np.append(count_up(1, 41), 500 + count_up(0, 30)).astype(np.int32))
    second = begin(cache, np.append(count_up(1, 71), 700 + count_up(0, 30)).astype(np.int32))
    cache.release(first)
    cache.release(second)
    evict(cache, cache.pool.num_evictable)
    assert cache.pool.num_free == 64


def test_a_partly_shared_page_is_copied_and_never_written() -> None:
    """O09: B shares part of A's second page; A's page keeps A's tokens and B gets a page of its own."""
    cache = make_cache()
    first = begin(cache, count_up(0, 32))
    pages = first.pages.tolist()
    cache.release(first)
    other = np.append(count_up(0, 20), 900 + count_up(0, 12)).astype(np.int32)
    match = cache.match(other)
    assert (match.pages.tolist(), match.partial_page, match.partial_tokens) == (pages[:1], pages[1], 4)
    lease = cache.acquire(match)
    assert (lease.copy_from, lease.copy_tokens) == (pages[1], 4)
    assert cache.reserve(lease, 32)
    assert lease.pages[0] == pages[0]
    assert lease.pages[1] not in pages
    assert cache.pool.counts[pages[1]] == 2
    cache.copied(lease)
    assert cache.pool.counts[pages[1]] == 1
    cache.commit(lease, other)
    cache.release(lease)
    assert cache.match(count_up(0, 33)).pages.tolist() == pages


def test_the_best_partly_matching_child_is_found_among_many() -> None:
    cache = make_cache(page_size=4, num_pages=400)
    rng = np.random.default_rng(3)
    stored = rng.integers(0, 4, (300, 4), dtype=np.int32)
    for page in stored:
        serve(cache, page)
    for query in rng.integers(0, 5, (300, 4), dtype=np.int32):
        common = (np.cumprod(stored == query, axis=1)).sum(axis=1).max()
        assert cached(cache, query) == common


def test_a_partial_page_is_replaced_by_a_fuller_page_with_the_same_beginning() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 20))
    old = cache.match(count_up(0, 21)).partial_page
    serve(cache, count_up(0, 27))
    match = cache.match(count_up(0, 28))
    assert (match.num_tokens, cache.pool.num_evictable) == (27, 2)
    assert match.partial_page != old


def test_a_partial_page_that_begins_a_cached_page_is_not_stored_again() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 32))
    lease = begin(cache, count_up(0, 21))
    assert lease.pages[1] != cache.match(count_up(0, 33)).pages[1]
    cache.release(lease)
    assert (cache.pool.num_evictable, cache.pool.num_in_use) == (2, 0)


def test_a_request_goes_on_writing_in_its_partial_page_that_is_in_the_tree() -> None:
    cache = make_cache()
    lease = begin(cache, count_up(0, 20))
    assert cache.reserve(lease, 40)
    pages = lease.pages.tolist()
    assert cache.commit(lease, count_up(0, 40)) == 20
    assert lease.pages.tolist() == pages
    cache.check()
    assert cached(cache, count_up(0, 40)) == 40


def test_the_loser_of_a_race_gets_the_trees_pages_and_gives_its_own_back() -> None:
    cache = make_cache()
    prompt = count_up(0, 40)
    leases = [cache.acquire(cache.match(prompt)) for _ in range(2)]
    for lease in leases:
        assert cache.reserve(lease, 48)
        cache.commit(lease, prompt)
        cache.check()
    winner, loser = (lease.pages.tolist() for lease in leases)
    assert loser[:2] == winner[:2]
    assert loser[2] != winner[2]
    assert cache.pool.num_in_use == 4
    assert cache.commit(leases[1], prompt) == 0


def test_what_is_committed_by_a_running_request_is_found_at_once() -> None:
    cache = make_cache()
    lease = cache.lease()
    assert cache.reserve(lease, 100)
    for end in (16, 40, 64, 100):
        cache.commit(lease, count_up(0, end))
        assert cached(cache, count_up(0, 100)) == end


def test_a_limit_caps_the_match() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 64))
    assert [cache.match(count_up(0, 64), limit=limit).num_tokens for limit in (0, 5, 16, 70)] == [
        0,
        5,
        16,
        63,
    ]


def test_an_empty_prompt_matches_nothing() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 64))
    match = cache.match(array())
    assert (match.num_tokens, match.pages.tolist(), match.partial_page) == (0, [], None)


def test_a_match_changes_nothing() -> None:
    cache = make_cache()
    serve(cache, count_up(0, 64))
    before = cache.snapshot()
    cache.match(np.append(count_up(0, 40), 7).astype(np.int32))
    assert cache.snapshot() == before


def test_reserve_that_cannot_be_met_changes_nothing() -> None:
    cache = make_cache(num_pages=8)
    serve(cache, count_up(0, 64))
    running = begin(cache, 500 + count_up(0, 32))
    before = cache.snapshot()
    assert not cache.reserve(running, 9 * 16)
    assert cache.snapshot() == before
    assert cache.reserve(running, 8 * 16)
    assert cache.pool.num_in_use == 8


def test_a_cursor_finds_its_place_after_the_node_was_split_and_its_end_evicted() -> None:
    cache = make_cache(page_size=4, num_pages=12)
    serve(cache, count_up(0, 16))
    lease = cache.acquire(cache.match(count_up(0, 9)))
    serve(cache, np.append(count_up(0, 8), 900 + count_up(0, 8)).astype(np.int32))
    evict(cache, cache.pool.num_evictable)
    own = np.append(count_up(0, 8), 500 + count_up(0, 8)).astype(np.int32)
    assert cache.reserve(lease, 16)
    assert cache.commit(lease, own) == 8
    cache.release(lease)
    cache.check()
    assert cached(cache, own) == 16


def test_namespaces_of_any_kind_share_nothing() -> None:
    cache = make_cache()
    names = [("default", ""), ("salt", "x"), ("adapter", "x"), ("tenant", "x")]
    assert [serve(cache, count_up(0, 32), name) for name in names] == [0, 0, 0, 0]
    assert [serve(cache, count_up(0, 32), name) for name in names] == [31, 31, 31, 31]
    assert len({int(cache.match(count_up(0, 32), name).pages[0]) for name in names}) == 4


def test_an_emptied_namespace_leaves_no_trace() -> None:
    cache = make_cache()
    for number in range(50):
        serve(cache, count_up(0, 16), ("salt", str(number)))
    cache.flush()
    assert cache.tree.spaces == {}
