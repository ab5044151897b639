"""Work is counted in visited nodes, so that it cannot grow with the tree unnoticed."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.radix.factories import count_up, make_cache, serve
from trunkline.radix import Lease, PrefixCache


def wide_cache(num_leaves: int) -> PrefixCache:
    """A full pool, filled past the facade for speed: leaves of one page, 1,000 behind each shared page."""
    num_groups = num_leaves // 1000
    cache = make_cache(page_size=2, num_pages=num_leaves + num_groups)
    everything = cache.lease()
    assert cache.reserve(everything, 2 * cache.pool.num_pages)
    cache.tree.add_space(everything.namespace, None)
    for group in range(num_groups):
        shared = everything.pages[num_leaves + group : num_leaves + group + 1]
        for number in range(group * 1000, group * 1000 + 1000):
            lease = Lease(everything.namespace)
            lease.append_pages(np.append(shared, everything.pages[number : number + 1]))
            cache.tree.insert(lease, np.array([group, group, number, number], dtype=np.int32), number + 1)
    cache.release(everything)
    return cache


def visits(cache: PrefixCache, work: Callable[[], object]) -> int:
    before = cache.tree.num_visits
    work()
    return cache.tree.num_visits - before


@pytest.mark.slow
def test_evicting_a_page_costs_the_same_at_a_thousand_and_a_hundred_thousand_leaves() -> None:
    """O06: a decode step that needs one page in a full pool looks at one node, whatever the size of the tree."""
    for num_leaves in (1_000, 100_000):
        cache = wide_cache(num_leaves)
        assert (cache.pool.num_free, len(cache.tree.leaves)) == (0, num_leaves)
        lease = cache.lease()
        for num_pages in range(1, 201):
            before = cache.tree.num_visits
            assert cache.reserve(lease, 2 * num_pages)
            assert cache.tree.num_visits == before + 1


def test_a_commit_visits_only_where_it_goes_on() -> None:
    cache = make_cache(page_size=4, num_pages=400)
    lease = cache.lease()
    assert cache.reserve(lease, 1500)
    tokens = count_up(0, 1500)
    costs = [visits(cache, lambda end=end: cache.commit(lease, tokens[:end])) for end in range(1, 1500, 7)]
    # While there is no whole page yet it starts at the root, later at the end of the leaf.
    assert costs == [1, 2] + [1] * (len(costs) - 2)


def test_a_match_visits_the_nodes_on_its_path_and_no_other() -> None:
    cache = make_cache(page_size=4, num_pages=400)
    for cut in range(4, 40, 4):
        serve(cache, np.append(count_up(0, cut), 100 + count_up(cut, cut + 4)).astype(np.int32))
    for number in range(100):
        serve(cache, 1000 * number + count_up(500, 504))
    for depth in range(1, 10):
        assert visits(cache, lambda depth=depth: cache.match(count_up(0, 4 * depth + 1))) == depth + 1
