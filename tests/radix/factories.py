"""Short ways to a cache, to arrays and through a request's whole life."""

import numpy as np

from trunkline.radix import DEFAULT_NAMESPACE, Lease, Namespace, PagePool, PrefixCache, RadixConfig


def array(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def count_up(start: int, end: int) -> np.ndarray:
    """Tokens start .. end - 1."""
    return np.arange(start, end, dtype=np.int32)


def make_cache(page_size: int = 16, num_pages: int = 64, **settings: object) -> PrefixCache:
    return PrefixCache(PagePool(num_pages, page_size), RadixConfig(page_size=page_size, **settings))


def begin(
    cache: PrefixCache, tokens: np.ndarray, namespace: Namespace = DEFAULT_NAMESPACE, priority: int = 0
) -> Lease:
    """A request that has computed and committed all of `tokens` and still runs."""
    lease = cache.acquire(cache.match(tokens, namespace), priority)
    assert cache.reserve(lease, len(tokens))
    cache.copied(lease)
    cache.commit(lease, tokens)
    cache.check()
    return lease


def serve(
    cache: PrefixCache, tokens: np.ndarray, namespace: Namespace = DEFAULT_NAMESPACE, priority: int = 0
) -> int:
    """A request from its match to its release; returns how many tokens were cached."""
    cached = cache.match(tokens, namespace).num_tokens
    cache.release(begin(cache, tokens, namespace, priority))
    cache.check()
    return cached


def cached(cache: PrefixCache, tokens: np.ndarray, namespace: Namespace = DEFAULT_NAMESPACE) -> int:
    """How many of all `tokens` are cached, the last one included."""
    return cache.match(np.append(tokens, np.int32(0)), namespace).num_tokens


def evict(cache: PrefixCache, num_pages: int) -> None:
    """Make room for `num_pages` more pages than are free, then give them back."""
    lease = cache.lease()
    assert cache.reserve(lease, (cache.pool.num_free + num_pages) * cache.page_size)
    cache.release(lease)
    cache.check()
