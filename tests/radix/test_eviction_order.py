"""Which page each policy gives up first, as literal lists."""

import numpy as np
import pytest

from tests.radix.factories import array, begin, cached, count_up, evict, make_cache, serve
from trunkline.errors import ConfigError
from trunkline.radix import POLICIES, PrefixCache
from trunkline.radix.eviction import make_policy

NAMES = "abcde"
PROMPTS = {name: array(number * 10, number * 10 + 1) for number, name in enumerate(NAMES)}


def order(cache: PrefixCache, names: str) -> list[str]:
    """Evict one page at a time and say whose it was."""
    gone: list[str] = []
    while len(gone) < len(names):
        evict(cache, 1)
        gone += [name for name in names if name not in gone and cached(cache, PROMPTS[name]) == 0]
    return gone


def filled(policy: str, hits: str = "", **priorities: int) -> PrefixCache:
    """Prompts a..e of one page each, stored in that order, then used again in the order of `hits`."""
    cache = make_cache(page_size=2, num_pages=16, eviction_policy=policy)
    for name in NAMES + hits:
        serve(cache, PROMPTS[name], priority=priorities.get(name, 0))
        # the last token of a prompt is never reused: only a longer one is a hit of the whole page
        if name in hits:
            cache.release(cache.acquire(cache.match(np.append(PROMPTS[name], np.int32(7)))))
    return cache


def test_lru_gives_up_what_was_used_longest_ago() -> None:
    assert order(filled("lru", "ca"), NAMES) == ["b", "d", "e", "c", "a"]


def test_fifo_gives_up_what_was_stored_first_however_often_it_was_used() -> None:
    assert order(filled("fifo", "ccab"), NAMES) == ["a", "b", "c", "d", "e"]


def test_lfu_gives_up_what_was_reused_least() -> None:
    assert order(filled("lfu", "aacbb"), NAMES) == ["d", "e", "c", "a", "b"]


def test_slru_gives_up_what_was_never_reused_before_what_was_reused_long_ago() -> None:
    assert order(filled("slru", "ab"), NAMES) == ["c", "d", "e", "a", "b"]


def test_slru_ends_the_protection_of_what_was_reused_too_long_ago() -> None:
    cache = make_cache(page_size=2, num_pages=10, eviction_policy="slru")
    for _ in range(2):
        serve(cache, np.append(PROMPTS["a"], np.int32(7)))
    for number in range(30):
        serve(cache, array(1000 + 2 * number, 1001 + 2 * number))
    assert cached(cache, PROMPTS["a"]) == 0
    assert cached(cache, array(1058, 1059)) == 2


def test_priority_gives_up_the_least_important_first() -> None:
    assert order(filled("priority", b=2, c=1, d=1), NAMES) == ["a", "e", "c", "d", "b"]


def test_priority_of_a_page_is_that_of_its_most_important_request() -> None:
    cache = filled("priority")
    serve(cache, PROMPTS["a"], priority=5)
    assert order(cache, NAMES) == ["b", "c", "d", "e", "a"]


@pytest.mark.parametrize(("policy", "settings"), [("priority", {"priority": 5}), ("fifo", {}), ("lfu", {})])
def test_a_fuller_page_keeps_the_past_of_the_one_it_replaces(policy: str, settings: dict[str, int]) -> None:
    """The first page was stored first, has a hit and an important request; filling it up changes none of it."""
    cache = make_cache(page_size=4, num_pages=16, eviction_policy=policy)
    serve(cache, array(1, 2), **settings)
    cache.release(cache.acquire(cache.match(array(1, 2, 9))))
    serve(cache, array(50, 51, 52, 53))
    before = cache.match(array(1, 2, 9)).partial_page
    serve(cache, array(1, 2, 3))
    assert cache.match(array(1, 2, 3, 9)).partial_page != before
    evict(cache, 1)
    first_gone = cached(cache, array(1, 2, 3)) == 0
    assert first_gone == (policy == "fifo")


def test_gdsf_gives_up_what_is_cheap_to_compute_again_for_its_hits() -> None:
    """A page deep in a long prompt is dearer than a page at the front; a hit doubles a page's worth."""
    cache = make_cache(page_size=1024, num_pages=64, eviction_policy="gdsf")
    long, short, wanted = count_up(0, 26 * 1024), 50_000 + count_up(0, 1024), 60_000 + count_up(0, 1024)
    serve(cache, wanted)
    cache.release(cache.acquire(cache.match(np.append(wanted, np.int32(1)))))
    serve(cache, long)
    serve(cache, short)
    evict(cache, 1)
    assert [cached(cache, prompt) for prompt in (long, short, wanted)] == [26 * 1024, 0, 1024]
    evict(cache, 1)
    assert [cached(cache, prompt) for prompt in (long, wanted)] == [25 * 1024, 1024]


def test_gdsf_ages_so_that_what_was_dear_once_does_not_stay_for_ever() -> None:
    cache = make_cache(page_size=2, num_pages=4, eviction_policy="gdsf")
    for _ in range(3):
        serve(cache, np.append(PROMPTS["a"], np.int32(7)))
    for number in range(20):
        serve(cache, array(1000 + 2 * number, 1001 + 2 * number))
    assert cached(cache, PROMPTS["a"]) == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_long_leaf_is_trimmed_from_its_end_by_what_is_needed(policy: str) -> None:
    cache = make_cache(page_size=16, num_pages=8, eviction_policy=policy)
    serve(cache, count_up(0, 120))
    for left in (112, 96, 80, 64, 48, 32, 16, 0):
        evict(cache, 1)
        assert cached(cache, count_up(0, 120)) == left


def test_a_leaf_goes_before_the_prefix_that_other_requests_share() -> None:
    cache = make_cache(page_size=2, num_pages=16)
    serve(cache, array(1, 2, 3, 4))
    serve(cache, array(1, 2, 5, 6))
    serve(cache, PROMPTS["b"])
    evict(cache, 2)
    assert [cached(cache, prompt) for prompt in (array(1, 2, 3, 4), PROMPTS["b"])] == [2, 2]
    evict(cache, 1)
    assert [cached(cache, prompt) for prompt in (array(1, 2, 3, 4), PROMPTS["b"])] == [0, 2]


def test_reusing_the_front_of_a_long_leaf_leaves_its_end_as_old_as_it_was() -> None:
    cache = make_cache(page_size=2, num_pages=16)
    serve(cache, count_up(100, 108))
    serve(cache, PROMPTS["a"])
    cache.release(cache.acquire(cache.match(count_up(100, 105))))
    evict(cache, 2)
    assert [cached(cache, prompt) for prompt in (count_up(100, 108), PROMPTS["a"])] == [4, 2]
    evict(cache, 1)
    assert [cached(cache, prompt) for prompt in (count_up(100, 108), PROMPTS["a"])] == [4, 0]


def test_a_leaf_is_trimmed_only_down_to_what_a_request_holds() -> None:
    cache = make_cache(page_size=2, num_pages=16)
    serve(cache, count_up(100, 116))
    lease = cache.acquire(cache.match(count_up(100, 107)))
    assert cache.num_available == 16 - 3
    evict(cache, cache.pool.num_evictable)
    assert cached(cache, count_up(100, 116)) == 6
    cache.release(lease)


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'mru' is not one of lru, lfu, slru, fifo, priority, gdsf"):
        make_policy("mru")


def test_running_requests_are_no_candidates_until_they_end() -> None:
    cache = make_cache(page_size=2, num_pages=4)
    lease = begin(cache, PROMPTS["a"])
    serve(cache, PROMPTS["b"])
    evict(cache, 1)
    assert (cached(cache, PROMPTS["a"]), cached(cache, PROMPTS["b"])) == (2, 0)
    cache.release(lease)
    evict(cache, 1)
    assert cached(cache, PROMPTS["a"]) == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_was_retired_goes_first_until_it_is_used_again(policy: str) -> None:
    cache = filled(policy, "ed")
    for name in "de":
        assert cache.retire(PROMPTS[name]) == 1
    serve(cache, np.append(PROMPTS["e"], np.int32(7)))
    assert order(cache, NAMES)[0] == "d"
    cache = filled(policy, "ed")
    cache.retire(PROMPTS["e"])
    assert order(cache, NAMES)[0] == "e"


def test_retiring_leaves_what_stands_before_what_is_held_and_what_is_older() -> None:
    cache = make_cache(page_size=2, num_pages=16)
    serve(cache, count_up(0, 4))
    begun = cache.tick
    serve(cache, count_up(0, 9))
    held = begin(cache, count_up(0, 7))
    assert cache.retire(count_up(0, 9), start=0, since=begun) == 2  # 6 and 7, and 8 alone
    assert cache.retire(count_up(50, 60)) == 0
    cache.release(held)
    assert cache.retire(count_up(0, 10), start=6, since=begun) == 2
    assert cache.retire(count_up(0, 10), start=5, since=begun) == 3
    assert cache.retire(count_up(0, 10), start=9) == 0
    assert cache.retire(count_up(0, 10)) == 5
