"""Subscribers hear of every whole page that comes and goes, and of every hit."""

import random

import numpy as np

from tests.radix.factories import array, count_up, evict, make_cache, serve
from trunkline.radix import DEFAULT_NAMESPACE, HitListener, PrefixMatch, page_hashes


class Pages:
    """Keeps the set of hashes it was told of."""

    def __init__(self) -> None:
        self.present: set[int] = set()

    def stored(self, hashes: np.ndarray) -> None:
        assert hashes.dtype == np.uint64
        assert not self.present & set(hashes.tolist())
        self.present |= set(hashes.tolist())

    def evicted(self, hashes: np.ndarray) -> None:
        assert set(hashes.tolist()) <= self.present
        self.present -= set(hashes.tolist())


class Hits(Pages):
    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def hit(self, match: PrefixMatch) -> None:
        self.lengths.append(match.num_tokens)


def test_stored_and_evicted_name_the_chain_hashes_of_whole_pages() -> None:
    cache = make_cache(page_size=4, num_pages=16)
    heard = Pages()
    cache.subscribe(heard)
    serve(cache, count_up(0, 14))
    hashes = page_hashes(count_up(0, 14), 4).tolist()
    assert heard.present == set(hashes)
    evict(cache, 2)
    assert heard.present == set(hashes[:2])


def test_a_late_subscriber_hears_of_pages_that_were_there_before() -> None:
    cache = make_cache(page_size=4, num_pages=16)
    other = np.append(count_up(0, 6), count_up(90, 95)).astype(np.int32)
    serve(cache, count_up(0, 14))
    serve(cache, other)
    assert not any(len(node.hashes) for node in cache.tree.leaves.values())
    heard = Pages()
    cache.subscribe(heard)
    cache.check()
    heard.present = set(page_hashes(count_up(0, 14), 4).tolist()) | set(page_hashes(other, 4).tolist())
    cache.flush()
    assert heard.present == set()


def test_a_partial_page_is_heard_of_when_it_has_become_whole() -> None:
    cache = make_cache(page_size=4)
    heard = Pages()
    cache.subscribe(heard)
    lease = cache.lease()
    assert cache.reserve(lease, 8)
    sizes = []
    for end in range(1, 9):
        cache.commit(lease, count_up(0, end))
        sizes.append(len(heard.present))
    assert sizes == [0, 0, 0, 1, 1, 1, 1, 2]


def test_a_listener_always_knows_exactly_the_pages_in_the_tree() -> None:
    rng = random.Random(5)
    cache = make_cache(page_size=4, num_pages=20)
    heard = Pages()
    cache.subscribe(heard)
    names = [DEFAULT_NAMESPACE, ("salt", "x")]
    for _ in range(400):
        serve(cache, array(*rng.choices((1, 2), (4, 1), k=rng.randint(1, 50))), rng.choice(names))
        if rng.random() < 0.02:
            cache.flush(rng.choice([None, *names]))
        nodes = [node for space in cache.tree.spaces.values() for node in space.root.subtree()]
        assert heard.present == {chain_hash for node in nodes for chain_hash in node.hashes.tolist()}


def test_hits_are_told_to_those_who_want_them() -> None:
    cache = make_cache(page_size=4)
    hits, pages = Hits(), Pages()
    cache.subscribe(pages)
    cache.subscribe(hits)
    assert isinstance(hits, HitListener)
    assert not isinstance(pages, HitListener)
    for end in (10, 10, 30):
        serve(cache, count_up(0, end))
    assert hits.lengths == [0, 9, 10]
