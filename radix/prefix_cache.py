"""The facade: what a scheduler asks of the prefix cache."""

from collections.abc import Container
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from trunkline.errors import ConfigError

from .checks import check_holders, check_tree
from .config import RadixConfig
from .errors import CommitError, PinError, StaleMatch
from .events import CacheListener, Listeners
from .eviction import make_policy
from .explain import Explainer, Explanation
from .ghosts import Ghosts
from .hashing import DEFAULT_NAMESPACE, Namespace, validate_namespace
from .lease import Lease, PrefixMatch
from .node import Node
from .pages import PagePool
from .pins import Pin, Pins
from .snapshot import TopPrefix, top_prefixes
from .stats import CacheStats, Counters
from .tokens import NO_PAGES, Int32Array, validate_tokens
from .tree import Evicted, RadixTree


class PrefixCache:
    """Prefixes of earlier requests, their pages, and who may use them.

    A request's life: `match` (a pure read) → `acquire` (or `lease` without reuse) → `reserve` pages → compute
    → `copied` and `commit` what is computed, again and again → `release`. Reference counts are the only lock:
    what a lease holds is never evicted. Time is logical: each call that changes something is one tick.
    """

    def __init__(self, pool: PagePool, config: RadixConfig | None = None) -> None:
        config = RadixConfig(page_size=pool.page_size) if config is None else config
        if config.page_size != pool.page_size:
            raise ConfigError(f"page_size {config.page_size} differs from the pool's {pool.page_size}")
        self.pool = pool
        self.config = config
        self.page_size = pool.page_size
        self.tree = RadixTree(pool, make_policy(config.eviction_policy))
        self.tick = 0
        self._leases: set[Lease] = set()
        self._listeners = Listeners()
        self._counters = Counters()
        self._pins = Pins(pool.num_pages, config.max_pinned_share)
        self._ghosts: Ghosts | None = None
        if config.explain:
            self._ghosts = Ghosts(config.ghost_capacity)
            self.tree.keep_hashes()

    @property
    def num_available(self) -> int:
        """Pages that `reserve` can still get: free or evictable. O(1)."""
        return self.pool.num_free + self.pool.num_evictable

    def match(
        self, tokens: Int32Array, namespace: Namespace = DEFAULT_NAMESPACE, limit: int | None = None
    ) -> PrefixMatch:
        """The longest cached prefix, of at most min(len(tokens) - 1, limit) tokens; changes nothing.

        `tokens`: int32, 1-D. At least one token is left to compute, since its logits are wanted. Raises
        InvalidTokens and UnknownNamespace. O(len(tokens)) vectorised, O(log children) for each node on the
        way.
        """
        validate_tokens(tokens)
        if namespace not in self.tree.spaces:
            validate_namespace(namespace)
        most = max(0, len(tokens) - 1)
        if limit is not None:
            most = max(0, min(most, limit))
        return self._match(namespace, tokens[:most], len(tokens))

    def acquire(self, match: PrefixMatch, priority: int = 0) -> Lease:
        """Take references to all that was matched; counts as one lookup, and one hit of each page.

        `priority` is what the "priority" policy goes by. Raises StaleMatch when some of the match was evicted
        since it was made. O(pages), vectorised.
        """
        self._require_fresh(match)
        lease = self._lease_of(match, priority)
        self.tree.usage.hit(lease.held_pages)
        self._counters.num_lookups += 1
        self._counters.num_prompt_tokens += match.num_prompt_tokens
        self._counters.num_hit_tokens += match.num_tokens
        self._listeners.hit(match)
        return lease

    def lease(self, namespace: Namespace = DEFAULT_NAMESPACE, priority: int = 0) -> Lease:
        """An empty lease, for a request that reuses nothing."""
        validate_namespace(namespace)
        lease = Lease(namespace, priority)
        self._leases.add(lease)
        return lease

    def reserve(self, lease: Lease, num_tokens: int) -> bool:
        """Let the lease's pages cover `num_tokens` tokens, evicting what is needed.

        False when free and evictable pages together are too few; then nothing is changed.
        O(new pages + leaves evicted * log candidates).
        """
        lease.require_live()
        missing = -(-num_tokens // self.page_size) - len(lease.pages)
        if missing <= 0:
            return True
        if missing > self.num_available:
            return False
        while self.pool.num_free < missing:
            evicted = self.tree.evict_first(missing - self.pool.num_free)
            self._counters.num_evicted_pages += len(evicted.pages)
            self._gone(evicted, self.tree.policy.name)
        lease.append_pages(self.pool.allocate(missing))
        return True

    def copied(self, lease: Lease) -> None:
        """The page of the partial match was copied: give it back. Nothing to do where there was none."""
        lease.require_live()
        if lease.copy_from is None:
            return
        self.tick += 1
        page = np.array([lease.copy_from], dtype=np.int32)
        lease.copy_from = None
        self._touch(lease, page)
        self._release(page)

    def commit(self, lease: Lease, tokens: Int32Array) -> int:
        """Put `tokens`, all computed and lying in the lease's pages, into the tree, a partial last page
        included.

        Where the tree has an equal whole page, the lease's table gets it and the own page is given back, at
        once. Returns by how many tokens the tree has grown. Goes on from the last commit: O(new tokens),
        vectorised. Raises CommitError (fewer pages than tokens; other tokens than before), InvalidTokens,
        LeaseReleased.
        """
        lease.require_live()
        validate_tokens(tokens, lease.depth)
        if len(tokens) > len(lease.pages) * self.page_size:
            raise CommitError(
                f"{len(tokens)} tokens do not lie in {len(lease.pages)} pages of {self.page_size} tokens"
            )
        if len(tokens) <= lease.depth:
            return 0
        self._require_same_beginning(lease, tokens)
        self.tick += 1
        if lease.namespace not in self.tree.spaces:
            max_pages = self.config.max_pages(lease.namespace, self.pool.num_pages)
            self.tree.add_space(lease.namespace, max_pages)
        done = self.tree.insert(lease, tokens, self.tick)
        lease.node, lease.depth = done.node, done.depth
        lease.num_committed = max(lease.num_committed, len(tokens))
        for index, pages in done.adopted:
            own = lease.pages[index : index + len(pages)].copy()
            self._retain(pages)
            lease.pages[index : index + len(pages)] = pages
            self._release(own)
        if len(done.hashes):
            self._listeners.stored(done.hashes)
        self._counters.num_stored_tokens += done.num_stored
        return done.num_stored

    def release(self, lease: Lease) -> None:
        """Give every page of the lease back; what was committed stays in the tree until it is evicted.

        Raises LeaseReleased the second time.
        """
        lease.require_live()
        self.tick += 1
        held = lease.held_pages
        self._touch(lease, held)
        self._release(held)
        lease.is_released = True
        lease.copy_from = None
        self._leases.remove(lease)

    def pin(
        self,
        tokens: Int32Array,
        namespace: Namespace = DEFAULT_NAMESPACE,
        *,
        now: float = 0.0,
        ttl: float | None = None,
    ) -> Pin:
        """Keep what is cached of a prefix, in whole pages, until `unpin` or until `now + ttl`.

        Time is the caller's: `expire_pins(now)` lets go of the pins whose time is over. Raises PinError when
        not even one page is cached, or when all pins together would go over `max_pinned_share` of the pool.
        """
        validate_tokens(tokens)
        validate_namespace(namespace)
        match = self._match(namespace, tokens[: len(tokens) - len(tokens) % self.page_size], len(tokens))
        if not len(match.pages):
            raise PinError(f"no whole page of the {len(tokens)} tokens is cached in {namespace}")
        self._pins.require_room(match.pages)
        lease = self._lease_of(replace(match, partial_page=None, partial_tokens=0), 0)
        return self._pins.add(lease, lease.depth, None if ttl is None else now + ttl)

    def unpin(self, pin: Pin) -> None:
        """Let a pinned prefix go; its pages stay until they are evicted. Raises PinError the second time."""
        self.release(self._pins.remove(pin))

    def expire_pins(self, now: float) -> int:
        """Let go of the pins whose time is over; returns how many. O(pins)."""
        expired = self._pins.expired(now)
        for pin in expired:
            self.unpin(pin)
        return len(expired)

    def retire(
        self,
        tokens: Int32Array,
        namespace: Namespace = DEFAULT_NAMESPACE,
        *,
        start: int = 0,
        since: int = 0,
    ) -> int:
        """Nobody is expected to come back to `tokens[start:]`: the pages with any of it are evicted before all others.

        Not those that a request or a pin holds, or that were stored up to tick `since`; one that is used again is
        like any other from then on. Returns how many there were. O(tokens + leaves * log candidates).
        """
        validate_tokens(tokens)
        validate_namespace(namespace)
        match = self._match(namespace, tokens, len(tokens))
        pages = match.pages
        if match.partial_page is not None and self.tree.ends_at(match.partial_page, match.num_tokens):
            pages = np.append(pages, np.int32(match.partial_page))
        pages = pages[start // self.page_size :] if start < match.num_tokens else NO_PAGES
        pages = pages[(self.pool.counts[pages] == 1) & (self.tree.usage.created[pages] > since)]
        self.tree.retire(pages)
        return len(pages)

    def flush(self, namespace: Namespace | None = None) -> int:
        """Drop all that no request and no pin holds, in one namespace or in all; returns the pages freed.

        O(nodes of the namespaces + pages freed).
        """
        if namespace is not None:
            validate_namespace(namespace)
        names = list(self.tree.spaces) if namespace is None else [namespace]
        spaces = [self.tree.spaces[name] for name in names if name in self.tree.spaces]
        freed = 0
        for leaf in [node for space in spaces for node in space.root.subtree() if node.entry is not None]:
            node: Node | None = leaf
            while node is not None and node.entry is not None:
                evicted = self.tree.evict_from(node, node.num_pages)
                freed += len(evicted.pages)
                self._gone(evicted, "flush")
                node = node if node.entry is not None else node.parent
        self._counters.num_flushed_pages += freed
        return freed

    def explain(
        self,
        tokens: Int32Array,
        namespace: Namespace = DEFAULT_NAMESPACE,
        *,
        in_flight: Container[int] = (),
        preempted_tokens: int = 0,
    ) -> Explanation:
        """Why a prompt would now be reused as far as it would be: a partition of it, each part with a reason.

        `in_flight`: chain hashes of pages being computed right now; `preempted_tokens`: how much of the
        prompt this request had computed before it was preempted. Evicted pages are known only with
        `RadixConfig.explain`; without it they count as never seen. For people and tools: it looks into every
        namespace.
        """
        validate_tokens(tokens)
        validate_namespace(namespace)
        explainer = Explainer(self.tree, self._ghosts)
        return explainer.explain(tokens, namespace, self.tick, in_flight, preempted_tokens)

    def stats(self) -> CacheStats:
        """What the cache has done and has. O(1)."""
        return CacheStats(
            **vars(self._counters),
            num_pages=self.pool.num_pages,
            num_free_pages=self.pool.num_free,
            num_evictable_pages=self.pool.num_evictable,
            num_in_use_pages=self.pool.num_in_use,
            num_pinned_pages=self._pins.num_pages,
            num_nodes=self.tree.num_nodes,
            num_leases=len(self._leases),
            tick=self.tick,
        )

    def snapshot(self) -> dict[str, Any]:
        """The tree and the statistics as JSON-ready values. O(nodes)."""
        return {"stats": asdict(self.stats()), "tree": self.tree.to_dict()}

    def top_prefixes(self, count: int, by: str = "tokens") -> list[TopPrefix]:
        """The prefixes whose last nodes brought most reused "tokens" or most "hits". O(pages in the tree)."""
        return top_prefixes(self.tree, count, by)

    def subscribe(self, listener: CacheListener) -> None:
        """Tell `listener` from now on what is stored and evicted; and what is hit, if it has `hit`.

        The first subscriber makes the tree keep page hashes, at the price of hashing what it has. O(tree).
        """
        self.tree.keep_hashes()
        self._listeners.add(listener)

    def check(self) -> None:
        """Recompute every invariant and raise InvariantViolated where one does not hold. O(pool + tree)."""
        self.pool.check()
        check_tree(self.tree)
        check_holders(self.tree, [lease.held_pages for lease in self._leases])

    def _match(self, namespace: Namespace, tokens: Int32Array, num_prompt_tokens: int) -> PrefixMatch:
        found = self.tree.match(namespace, tokens)
        match found.runs:
            case ():
                pages = NO_PAGES
            case (run,):
                pages = run
            case runs:
                pages = np.concatenate(runs)
        return PrefixMatch(
            num_tokens=found.num_pages * self.page_size + found.partial_tokens,
            pages=pages,
            partial_page=found.partial_page,
            partial_tokens=found.partial_tokens,
            namespace=namespace,
            tokens=tokens,
            num_prompt_tokens=num_prompt_tokens,
            node=found.node,
            num_removals=self.tree.num_removals,
        )

    def _require_fresh(self, match: PrefixMatch) -> None:
        """After pages left the tree, the same lookup must still find the same pages."""
        if match.num_removals == self.tree.num_removals:
            return
        again = self._match(match.namespace, match.tokens[: match.num_tokens], match.num_prompt_tokens)
        same = np.array_equal(again.pages, match.pages) and again.partial_page == match.partial_page
        if not same or again.num_tokens != match.num_tokens:
            raise StaleMatch(
                f"of {match.num_tokens} tokens matched in {match.namespace} only {again.num_tokens} are left"
                " in the same pages: match again"
            )

    def _lease_of(self, match: PrefixMatch, priority: int) -> Lease:
        self.tick += 1
        lease = Lease(match.namespace, priority)
        lease.append_pages(match.pages)
        lease.node, lease.depth = match.node, len(match.pages) * self.page_size
        lease.num_committed = lease.depth
        lease.copy_from, lease.copy_tokens = match.partial_page, match.partial_tokens
        self._retain(lease.held_pages)
        self._leases.add(lease)
        return lease

    def _gone(self, evicted: Evicted, policy: str) -> None:
        if len(evicted.hashes):
            if self._ghosts is not None:
                self._ghosts.add(evicted.hashes, self.tick, policy)
            self._listeners.evicted(evicted.hashes)

    def _retain(self, pages: Int32Array) -> None:
        self.pool.retain(pages)
        self.tree.pages_retained(pages)

    def _release(self, pages: Int32Array) -> None:
        self.tree.pages_left(self.pool.release(pages))

    def _touch(self, lease: Lease, pages: Int32Array) -> None:
        self.tree.usage.touch(pages, self.tick, lease.priority, self.tree.policy.age)

    def _require_same_beginning(self, lease: Lease, tokens: Int32Array) -> None:
        """The last whole page that was committed must be what `tokens` has there (the rest is trusted)."""
        if not lease.depth or lease.node is None:
            return
        node = self.tree.node_at(lease.node, lease.depth)
        first = lease.depth - self.page_size
        if not np.array_equal(node.tokens_from(first)[: self.page_size], tokens[first : lease.depth]):
            raise CommitError(f"tokens {first}..{lease.depth} differ from those the lease committed before")
