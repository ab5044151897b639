"""Chain hashes locate a page with all that comes before it, in its namespace."""

import numpy as np
import xxhash

from tests.radix.factories import array, count_up
from trunkline.radix import page_hashes
from trunkline.radix.hashing import chain_hashes, hash_digest
from trunkline.radix.tokens import common_key_length, common_length, page_key


def test_each_hash_is_of_the_one_before_and_the_page() -> None:
    tokens = count_up(0, 11)
    first, second = page_hashes(tokens, 4).tolist()
    seed = xxhash.xxh3_64_digest(b"default\0")
    assert first == xxhash.xxh3_64_intdigest(seed + tokens[:4].tobytes())
    assert second == xxhash.xxh3_64_intdigest(first.to_bytes(8, "big") + tokens[4:8].tobytes())


def test_a_chain_can_be_gone_on_with() -> None:
    tokens = count_up(0, 40)
    whole = page_hashes(tokens, 4)
    assert np.array_equal(chain_hashes(tokens[16:], 4, hash_digest(whole[3])), whole[4:])


def test_a_change_anywhere_changes_every_hash_behind_it() -> None:
    tokens = count_up(0, 40)
    changed = tokens.copy()
    changed[9] = 77
    same = page_hashes(tokens, 4) == page_hashes(changed, 4)
    assert same.tolist() == [True] * 2 + [False] * 8


def test_namespaces_cannot_run_into_each_other() -> None:
    names = [("default", ""), ("salt", ""), ("salt", "a"), ("adapter", "a"), ("salt", "ab"), ("tenant", "a")]
    assert len({int(page_hashes(count_up(0, 4), 4, name)[0]) for name in names}) == len(names)


def test_less_than_a_page_has_no_hash() -> None:
    assert page_hashes(count_up(0, 3), 4).tolist() == []


def test_page_keys_sort_like_their_tokens() -> None:
    rng = np.random.default_rng(0)
    pages = [rng.integers(0, 2**31 - 1, rng.integers(1, 5), dtype=np.int32) for _ in range(300)]
    by_key = sorted(pages, key=page_key)
    assert [page.tolist() for page in by_key] == sorted(page.tolist() for page in pages)


def test_common_lengths() -> None:
    assert common_length(array(1, 2, 3), array(1, 2, 4, 5)) == 2
    assert common_length(array(1, 2), array(1, 2, 3)) == 2
    assert common_length(array(), array(1)) == 0
    for left, right in [((1, 2, 3), (1, 2, 4)), ((256,), (1,)), ((1, 2), (1, 2, 3)), ((5, 6), (5, 6))]:
        expected = common_length(array(*left), array(*right))
        assert common_key_length(page_key(array(*left)), page_key(array(*right))) == expected
