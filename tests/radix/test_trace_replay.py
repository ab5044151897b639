"""Real chat: the hits of a whole cache are those that counting blocks gives."""

import gzip
import json
from pathlib import Path

import numpy as np

from tests.radix.factories import make_cache

TRACE = Path(__file__).parents[2] / "benchmarks" / "data" / "mooncake_conversation.jsonl.gz"
BLOCK = 512


def test_the_first_requests_of_a_chat_trace_hit_exactly_the_blocks_seen_before() -> None:
    with gzip.open(TRACE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(next(lines)) for _ in range(600)]
    cache = make_cache(page_size=BLOCK, num_pages=20_000)
    seen: set[int] = set()
    for row in rows:
        leading = next(
            (i for i, block in enumerate(row["hash_ids"]) if block not in seen), len(row["hash_ids"])
        )
        seen.update(row["hash_ids"])
        tokens = np.repeat(np.array(row["hash_ids"], dtype=np.int32), BLOCK)[: row["input_length"]]
        # A token behind the prompt, so that a prompt cached as a whole counts as a whole.
        match = cache.match(np.append(tokens, np.int32(0)))
        assert match.num_tokens == min(leading * BLOCK, row["input_length"])
        lease = cache.acquire(match)
        assert cache.reserve(lease, len(tokens))
        cache.copied(lease)
        cache.commit(lease, tokens)
        cache.release(lease)
    cache.check()
    assert cache.stats().num_evicted_pages == 0
    assert cache.stats().num_hit_tokens > 500_000
