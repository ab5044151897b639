"""What tools can see of a cache."""

import json

import numpy as np

from tests.radix.factories import begin, count_up, evict, make_cache, serve


def test_a_snapshot_is_json_and_describes_every_node() -> None:
    cache = make_cache(page_size=4, num_pages=32)
    serve(cache, count_up(0, 10), ("salt", "x"))
    serve(cache, count_up(0, 12))
    lease = begin(cache, np.append(count_up(0, 8), 90 + count_up(0, 5)).astype(np.int32))
    snapshot = json.loads(json.dumps(cache.snapshot()))
    salt, default = snapshot["tree"]["namespaces"]
    assert (salt["kind"], salt["value"], salt["num_pages"]) == ("salt", "x", 3)
    assert [(node["start"], node["num_tokens"], node["num_pages_in_use"]) for node in default["nodes"]] == [
        (0, 8, 2),
        (8, 4, 0),
        (8, 5, 2),
    ]
    upper = default["nodes"][0]
    assert [node["parent"] for node in default["nodes"]] == [None, upper["id"], upper["id"]]
    assert (upper["hits"], upper["num_children"]) == (1, 2)
    assert snapshot["stats"]["num_leases"] == 1
    cache.release(lease)


def test_a_snapshot_of_a_very_deep_tree_does_not_recurse() -> None:
    cache = make_cache(page_size=1, num_pages=4000)
    main = begin(cache, count_up(0, 1501))
    for depth in range(1, 1500):
        fork = cache.lease()
        fork.append_pages(main.pages[:depth])
        fork.node, fork.depth = main.node, depth  # as if it had been acquired there
        fork.append_pages(cache.pool.allocate(1))
        cache.tree.insert(fork, np.append(count_up(0, depth), np.int32(9999)), depth)
    nodes = cache.tree.to_dict()["namespaces"][0]["nodes"]
    assert len(nodes) == 1500 + 1499
    json.dumps(nodes)


def test_top_prefixes_by_reused_tokens_and_by_hits() -> None:
    cache = make_cache(page_size=4, num_pages=64)
    system, other = count_up(0, 8), count_up(100, 140)
    for number in range(4):
        serve(cache, np.append(system, 500 + 10 * number + count_up(0, 4)).astype(np.int32))
    for number in range(2):
        serve(cache, np.append(other, 500 + 10 * number + count_up(0, 4)).astype(np.int32))
    by_hits = cache.top_prefixes(2, by="hits")
    assert [(top.num_tokens, top.hits, top.tokens_reused) for top in by_hits] == [(8, 3, 24), (40, 1, 40)]
    assert by_hits[0].tokens.tolist() == system.tolist()
    by_tokens = cache.top_prefixes(1, by="tokens")
    assert [(top.num_tokens, top.hits, top.tokens_reused) for top in by_tokens] == [(40, 1, 40)]


def test_statistics_add_up() -> None:
    cache = make_cache(page_size=4, num_pages=16)
    serve(cache, count_up(0, 20))
    serve(cache, count_up(0, 30))
    evict(cache, 3)
    stats = cache.stats()
    assert (stats.num_lookups, stats.num_prompt_tokens, stats.num_hit_tokens) == (2, 50, 20)
    assert stats.hit_share == 0.4
    assert stats.num_stored_tokens == 30
    assert (stats.num_evicted_pages, stats.num_flushed_pages) == (3, 0)
    assert (stats.num_free_pages, stats.num_evictable_pages, stats.num_in_use_pages) == (11, 5, 0)
    assert make_cache().stats().hit_share == 0.0
