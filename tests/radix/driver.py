"""Drives a PrefixCache and the plain model side by side, and compares them after every operation."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
import pytest

from tests.oracle.radix_model import Entry, Key, PlainCache
from trunkline.radix import Lease, PagePool, Pin, PrefixCache, RadixConfig
from trunkline.radix.errors import PinError

Tokens = tuple[int, ...]
Namespace = tuple[str, str]

# (entry, position of its first token, pages in the pool) -> what is lowest goes first
RANKS: dict[str, Callable[[Entry, int, int], tuple[float, ...]]] = {
    "lru": lambda entry, start, pool: (entry.last_access,),
    "lfu": lambda entry, start, pool: (entry.hits, entry.last_access),
    "slru": lambda entry, start, pool: (entry.age + (0.8 * pool if entry.hits else 0), entry.last_access),
    "fifo": lambda entry, start, pool: (entry.created,),
    "priority": lambda entry, start, pool: (entry.priority, entry.last_access),
    "gdsf": lambda entry, start, pool: (
        entry.age + (1 + entry.hits) * (1 + start / 26_000),
        entry.last_access,
    ),
}


def array(tokens: Tokens | list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@dataclass
class Running:
    """A request: what it has computed, and the tokens it started from."""

    lease: Lease
    tokens: Tokens
    num_computed: int


class Silent:
    """A listener that does nothing."""

    def stored(self, hashes: np.ndarray) -> None: ...

    def evicted(self, hashes: np.ndarray) -> None: ...


class Driver:
    """Every method does one thing to both, then compares everything that can be seen."""

    def __init__(
        self, page_size: int, num_pages: int, policy: str = "lru", config: RadixConfig | None = None
    ) -> None:
        self.size = page_size
        config = config or RadixConfig(page_size=page_size, eviction_policy=policy)
        self.cache = PrefixCache(PagePool(num_pages, page_size), config)
        self.model = PlainCache(page_size)
        self.policy = config.eviction_policy
        self.age = 0.0  # slru: pages evicted so far; gdsf: rank of the last one
        self.running: list[Running] = []
        self.pins: list[tuple[Pin, list[int]]] = []
        self.kv: dict[tuple[int, int], Tokens] = {}  # (page, slot) -> the tokens up to and including this one

    def listen(self) -> None:
        """Subscribe, so that the tree keeps page hashes from here on."""
        self.cache.subscribe(Silent())

    def start(self, tokens: Tokens, namespace: Namespace, priority: int = 0) -> Running:
        """Match, acquire, copy the partly matching page; nothing else is computed yet."""
        match = self.cache.match(array(tokens), namespace)
        expected = min(self.model.match(namespace, tokens), len(tokens) - 1)
        assert match.num_tokens == expected
        assert match.num_tokens == len(match.pages) * self.size + match.partial_tokens
        self.require_written(tokens[: len(match.pages) * self.size], match.pages)
        if match.partial_page is not None:
            for slot in range(match.partial_tokens):
                end = len(match.pages) * self.size + slot + 1
                assert self.kv[match.partial_page, slot] == tokens[:end]
        lease = self.cache.acquire(match, priority)
        request = Running(lease, tokens, match.num_tokens)
        for page in lease.held_pages.tolist():
            self.entry_of(page).hits += 1
        self.running.append(request)
        copied = self.reserve(request, match.num_tokens)
        if match.partial_page is not None and copied:
            target = int(lease.pages[len(match.pages)])
            for slot in range(match.partial_tokens):
                self.kv[target, slot] = self.kv[match.partial_page, slot]
            self.touch([match.partial_page], priority, self.cache.tick + 1)
            self.cache.copied(lease)
        if not copied:
            self.finish(request)
        self.compare()
        return request

    def compute(self, request: Running, count: int, more: Tokens = ()) -> None:
        """Compute up to `count` tokens of the prompt, or those of `more` behind it, and commit."""
        request.tokens += more
        end = min(len(request.tokens), request.num_computed + count + len(more))
        if not self.reserve(request, end):
            return
        table = request.lease.pages
        for position in range(request.num_computed, end):
            self.kv[int(table[position // self.size]), position % self.size] = request.tokens[: position + 1]
        request.num_computed = end
        tokens, namespace = request.tokens[:end], request.lease.namespace
        before = table.tolist()
        tick = self.cache.tick + 1
        new = Entry(0, tick, tick, 0, request.lease.priority, self.age)
        expected = self.model.commit(namespace, tokens, before, new)
        stored = self.cache.commit(request.lease, array(tokens))
        assert stored == expected
        self.require_written(tokens, request.lease.pages)
        self.compare()

    def finish(self, request: Running) -> None:
        """Give everything back."""
        self.running.remove(request)
        held = request.lease.held_pages.tolist()
        self.touch(held, request.lease.priority, self.cache.tick + 1)
        self.cache.release(request.lease)
        self.compare()

    def reserve(self, request: Running, num_tokens: int) -> bool:
        before, held = self.contents(), self.held_pages()
        available = self.cache.num_available
        missing = -(-num_tokens // self.size) - len(request.lease.pages)
        fine = self.cache.reserve(request.lease, num_tokens)
        assert fine == (missing <= available)
        self.expect_evicted(before - self.contents(), held)
        return fine

    def expect_evicted(self, gone: set[Key], held: set[int]) -> None:
        """What has gone went in the policy's order: in each turn one of the lowest-ranked free leaves."""
        while gone:
            leaves = [key for key in self.model.leaves() if self.model.entries[key].page not in held]
            ranks = {key: self.rank(key) for key in leaves}
            lowest = min(ranks.values())
            turn = [key for key in leaves if ranks[key] == lowest and key in gone]
            assert turn, f"{gone} went before {lowest}"
            del self.model.entries[turn[0]]
            gone.discard(turn[0])
            if self.policy == "slru":
                self.age += 1
            elif self.policy == "gdsf":
                self.age = max(self.age, lowest[0])

    def rank(self, key: Key) -> tuple[float, ...]:
        start = (len(key[1]) - 1) // self.size * self.size
        rank = RANKS[self.policy](self.model.entries[key], start, self.cache.pool.num_pages)
        return (-inf, *rank) if self.model.entries[key].retired else rank

    def pin(self, tokens: Tokens, namespace: Namespace) -> None:
        """Pin what is cached of these tokens, if that is anything and there is room."""
        keys = self.model.keys_along(namespace, tokens)
        pages = [self.model.entries[key].page for key in keys]
        pinned = {page for _, others in self.pins for page in others}
        room = int(self.cache.config.max_pinned_share * self.cache.pool.num_pages)
        if keys and len(pinned | set(pages)) <= room:
            pin = self.cache.pin(array(tokens), namespace)
            assert pin.num_tokens == len(keys[-1][1])
            self.pins.append((pin, pages))
        else:
            with pytest.raises(PinError):
                self.cache.pin(array(tokens), namespace)
        self.compare()

    def unpin(self, index: int) -> None:
        pin, pages = self.pins.pop(index)
        self.touch(pages, 0, self.cache.tick + 1)
        self.cache.unpin(pin)
        self.compare()

    def retire(self, tokens: Tokens, namespace: Namespace, start: int, since: int) -> None:
        """What nobody holds of the pages that end behind `start` goes first, unless it was stored by `since`."""
        retired = [
            entry
            for key in self.model.all_along(namespace, tokens)
            if len(key[1]) > start
            and (entry := self.model.entries[key]).created > since
            and entry.page not in self.held_pages()
        ]
        for entry in retired:
            entry.retired = True
        assert self.cache.retire(array(tokens), namespace, start=start, since=since) == len(retired)
        self.compare()

    def flush(self, namespace: Namespace | None) -> None:
        """Everything goes that nobody holds and that nothing held lies behind."""
        held = self.held_pages()
        gone = 0
        while True:
            free = [
                key
                for key in self.model.leaves()
                if self.model.entries[key].page not in held and namespace in (None, key[0])
            ]
            if not free:
                break
            gone += len(free)
            for key in free:
                del self.model.entries[key]
        assert self.cache.flush(namespace) == gone
        self.compare()

    def held_pages(self) -> set[int]:
        running = {page for request in self.running for page in request.lease.held_pages.tolist()}
        return running.union(*(pages for _, pages in self.pins))

    def entry_of(self, page: int) -> Entry:
        return next(entry for entry in self.model.entries.values() if entry.page == page)

    def touch(self, pages: list[int], priority: int, tick: int) -> None:
        for entry in self.model.entries.values():
            if entry.page in pages:
                entry.last_access = tick
                entry.age = self.age
                entry.retired = False
                entry.priority = max(entry.priority, priority)

    def contents(self) -> set[Key]:
        """Every page in the tree, as the tokens up to its end."""
        found: set[Key] = set()
        for namespace, space in self.cache.tree.spaces.items():
            paths: dict[int, Tokens] = {space.root.id: ()}
            for node in space.root.subtree():
                if node.parent is None:
                    continue
                before = paths[node.parent.id]
                paths[node.id] = before + tuple(node.tokens.tolist())
                for page in range(node.num_pages):
                    end = min((page + 1) * self.size, node.num_tokens)
                    found.add((namespace, before + tuple(node.tokens[:end].tolist())))
        return found

    def require_written(self, tokens: Tokens, pages: np.ndarray) -> None:
        """What lies in the pages is what these tokens need, slot by slot."""
        for position in range(len(tokens)):
            slot = (int(pages[position // self.size]), position % self.size)
            assert self.kv[slot] == tokens[: position + 1]

    def compare(self) -> None:
        self.cache.check()
        assert self.contents() == set(self.model.entries)
        pool = self.cache.pool
        held = self.held_pages()
        stored = {entry.page for entry in self.model.entries.values()}
        assert pool.num_in_use == len(held)
        assert pool.num_evictable == len(stored - held)
        assert pool.num_free == pool.num_pages - len(stored | held)
