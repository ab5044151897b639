"""The pool counts references and hands out pages in order."""

import random

import numpy as np
import pytest

from tests.radix.factories import array
from trunkline.errors import ConfigError
from trunkline.radix import PagePool
from trunkline.radix.errors import InvariantViolated, OutOfPages, PageStateError


def numbers(pool: PagePool) -> tuple[int, int, int]:
    pool.check()
    return pool.num_free, pool.num_evictable, pool.num_in_use


def test_pages_start_at_one_sorted_and_contiguous() -> None:
    pool = PagePool(8, 16)
    assert pool.allocate(3).tolist() == [1, 2, 3]
    assert pool.allocate(2).tolist() == [4, 5]
    assert numbers(pool) == (3, 0, 5)


def test_a_contiguous_run_is_preferred_to_scattered_lower_pages() -> None:
    pool = PagePool(10, 16)
    pool.allocate(10)
    pool.release(array(9, 2, 5, 6, 7))
    assert pool.allocate(3).tolist() == [5, 6, 7]
    assert pool.allocate(2).tolist() == [2, 9]


def test_pages_that_were_used_before_are_preferred_to_new_ones() -> None:
    pool = PagePool(6400, 16)
    assert pool.highest == 0
    for _ in range(1000):
        pool.release(pool.allocate(4))
        pool.allocate(0)
    assert pool.highest <= 6400 / 64 + 4
    pool.check()


def test_scattered_pages_are_handed_out_sorted_when_there_is_no_run() -> None:
    pool = PagePool(9, 16)
    pool.allocate(9)
    pool.release(array(8, 2, 5))
    assert pool.allocate(2).tolist() == [2, 5]
    assert pool.allocate(1).tolist() == [8]


def test_a_page_is_free_when_its_last_reference_goes() -> None:
    pool = PagePool(4, 16)
    pages = pool.allocate(2)
    pool.retain(pages)
    pool.release(pages)
    assert numbers(pool) == (2, 0, 2)
    pool.release(pages)
    assert numbers(pool) == (4, 0, 0)


def test_a_held_page_without_other_references_is_evictable() -> None:
    pool = PagePool(4, 16)
    pages = pool.allocate(3)
    pool.hold(pages)
    assert numbers(pool) == (1, 0, 3)
    assert pool.release(pages[:2]).tolist() == [1, 2]
    assert numbers(pool) == (1, 2, 1)
    pool.retain(pages[1:])
    assert numbers(pool) == (1, 1, 2)
    pool.drop(pages)
    assert numbers(pool) == (2, 0, 2)


@pytest.mark.parametrize(
    ("operation", "pages", "message"),
    [
        ("release", [3], "cannot release page 3: it has no such reference"),
        ("retain", [1, 4], "cannot retain page 4: it is free"),
        ("release", [1, 1], "cannot release page 1 twice"),
        ("release", [2], "cannot release page 2"),
        ("hold", [2], "cannot hold page 2: it is free or held"),
        ("drop", [1], "cannot drop page 1: it is not held"),
        ("drop", [2, 1], "cannot drop page 1: it is not held"),
        ("retain", [0], "cannot retain page 0"),
        ("retain", [5], "page 5 is not one of 1..4"),
        ("release", [-1], "page -1 is not one of 1..4"),
        ("drop", [9], "page 9 is not one of 1..4"),
    ],
)
def test_what_a_page_is_not_ready_for_is_refused_and_changes_nothing(
    operation: str, pages: list[int], message: str
) -> None:
    pool = PagePool(4, 16)
    pool.hold(pool.allocate(2)[1:])
    pool.release(array(2))  # page 1 in use, page 2 held alone, 3 and 4 free
    before = pool.counts.copy(), pool.held.copy(), numbers(pool)
    with pytest.raises(PageStateError, match=message):
        getattr(pool, operation)(array(*pages))
    assert np.array_equal(pool.counts, before[0])
    assert np.array_equal(pool.held, before[1])
    assert numbers(pool) == before[2]


def test_more_pages_than_are_free_are_refused() -> None:
    pool = PagePool(4, 16)
    pool.allocate(3)
    with pytest.raises(OutOfPages, match="2 pages asked for, 1 of 4 are free"):
        pool.allocate(2)
    with pytest.raises(PageStateError, match="cannot allocate -1 pages"):
        pool.allocate(-1)
    assert numbers(pool) == (1, 0, 3)


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 16), (4, 0)])
def test_a_pool_without_pages_or_tokens_is_refused(num_pages: int, page_size: int) -> None:
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        PagePool(num_pages, page_size)


def test_check_finds_a_count_that_was_changed_behind_the_pools_back() -> None:
    pool = PagePool(4, 16)
    pool.counts[pool.allocate(1)] = 0
    with pytest.raises(InvariantViolated, match="count 0"):
        pool.check()


def test_random_references_agree_with_a_plain_count() -> None:
    rng = random.Random(1)
    pool = PagePool(40, 16)
    counts = dict.fromkeys(range(1, 41), 0)
    held: set[int] = set()
    for _ in range(3_000):
        used = [page for page in counts if counts[page] > (page in held)]
        some = rng.sample(used, rng.randint(0, min(len(used), 6)))
        match rng.randrange(5):
            case 0 if pool.num_free:
                some = pool.allocate(rng.randint(0, min(pool.num_free, 6))).tolist()
                assert all(counts[page] == 0 for page in some)
                assert some == sorted(some)
                change = 1
            case 1:
                pool.retain(array(*some))
                change = 1
            case 2:
                some = [page for page in some if page not in held]
                pool.hold(array(*some))
                held |= set(some)
                change = 1
            case 3:
                some = rng.sample(sorted(held), rng.randint(0, min(len(held), 4)))
                pool.drop(array(*some))
                held -= set(some)
                change = -1
            case _:
                alone = pool.release(array(*some)).tolist()
                assert sorted(alone) == sorted(page for page in some if page in held and counts[page] == 2)
                change = -1
        for page in some:
            counts[page] += change
        free = sum(count == 0 for count in counts.values())
        evictable = sum(counts[page] == 1 for page in held)
        assert numbers(pool) == (free, evictable, 40 - free - evictable)
