"""The facade: what a scheduler asks of the prefix cache."""

import numpy as np

from trunkline.errors import ConfigError

from .checks import check_holders, check_tree
from .config import RadixConfig
from .errors import CommitError, StaleMatch
from .events import CacheListener, Listeners
from .eviction import make_policy
from .hashing import DEFAULT_NAMESPACE, Namespace, validate_namespace
from .lease import Lease, PrefixMatch
from .pages import PagePool
from .tokens import NO_PAGES, Int32Array, validate_tokens
from .tree import RadixTree


class PrefixCache:
    """Prefixes of earlier requests, their pages, and who may use them.

    A request's life: `match` (a pure read) → `acquire` (or `lease` without reuse) → `reserve` pages → compute →
    `copied` and `commit` what is computed, again and again → `release`. Reference counts are the only lock: what a
    lease holds is never evicted. Time is logical: each call that changes something is one tick.
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

    @property
    def num_available(self) -> int:
        """Pages that `reserve` can still get: free or evictable. O(1)."""
        return self.pool.num_free + self.pool.num_evictable

    def match(
        self, tokens: Int32Array, namespace: Namespace = DEFAULT_NAMESPACE, limit: int | None = None
    ) -> PrefixMatch:
        """The longest cached prefix, of at most min(len(tokens) - 1, limit) tokens; changes nothing.

        `tokens`: int32, 1-D. At least one token is left to compute, since its logits are wanted. Raises InvalidTokens
        and UnknownNamespace. O(len(tokens)) vectorised, O(log children) for each node on the way.
        """
        validate_tokens(tokens)
        if namespace not in self.tree.spaces:
            validate_namespace(namespace)
        most = max(0, len(tokens) - 1)
        if limit is not None:
            most = max(0, min(most, limit))
        return self._match(namespace, tokens[:most], len(tokens))

    def acquire(self, match: PrefixMatch, priority: int = 0) -> Lease:
        """Take references to all that was matched; counts a hit.

        Raises StaleMatch when some of it was evicted since. O(pages), vectorised.
        """
        if match.num_removals != self.tree.num_removals:
            match = self._refreshed(match)
        self.tick += 1
        lease = Lease(match.namespace, priority)
        lease.append_pages(match.pages)
        lease.node, lease.depth = match.node, len(match.pages) * self.page_size
        lease.num_committed = lease.depth
        lease.copy_from, lease.copy_tokens = match.partial_page, match.partial_tokens
        held = lease.held_pages
        self._retain(held)
        self.tree.usage.hit(held)
        self._leases.add(lease)
        return lease

    def lease(self, namespace: Namespace = DEFAULT_NAMESPACE, priority: int = 0) -> Lease:
        """An empty lease, for a request that reuses nothing."""
        validate_namespace(namespace)
        lease = Lease(namespace, priority)
        self._leases.add(lease)
        return lease

    def reserve(self, lease: Lease, num_tokens: int) -> bool:
        """Let the lease's pages cover `num_tokens` tokens, evicting what is needed.

        False when free and evictable pages together are too few; then nothing is changed. O(new pages + evictions).
        """
        lease.require_live()
        missing = -(-num_tokens // self.page_size) - len(lease.pages)
        if missing <= 0:
            return True
        if missing > self.num_available:
            return False
        self._evict(missing - self.pool.num_free)
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
        """Put `tokens`, all computed and lying in the lease's pages, into the tree, a partial last page included.

        Where the tree has an equal whole page, the lease's table gets it and the own page is given back, at once.
        Returns by how many tokens the tree has grown. Goes on from the last commit:
        O(new tokens), vectorised. Raises CommitError (fewer pages than tokens; other tokens than before),
        InvalidTokens, LeaseReleased.
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
        done = self.tree.insert(
            lease.namespace, lease.node, lease.depth, tokens, lease.pages, self.tick, lease.priority
        )
        for index, pages in done.adopted:
            own = lease.pages[index : index + len(pages)].copy()
            self._retain(pages)
            lease.pages[index : index + len(pages)] = pages
            self._release(own)
        lease.node, lease.depth = done.node, done.depth
        lease.num_committed = max(lease.num_committed, len(tokens))
        if done.hashes is not None and len(done.hashes):
            self._listeners.stored(done.hashes)
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

    def subscribe(self, listener: CacheListener) -> None:
        """Tell `listener` from now on, in the same call, what is stored and evicted."""
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

    def _refreshed(self, match: PrefixMatch) -> PrefixMatch:
        """The same match taken again, after something was evicted; it must still find the same pages."""
        again = self._match(match.namespace, match.tokens, match.num_prompt_tokens)
        if again.num_tokens < match.num_tokens or not np.array_equal(again.pages, match.pages):
            raise StaleMatch(
                f"{match.num_tokens} tokens were matched in {match.namespace}, {again.num_tokens} are there now"
            )
        return again

    def _evict(self, num_pages: int) -> None:
        while num_pages > 0:
            evicted = self.tree.evict_leaf(num_pages)
            self.tree.policy.evicted(evicted.rank)
            num_pages -= len(evicted.pages)
            if len(evicted.hashes):
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
