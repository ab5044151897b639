"""What a cache has done since it was made, and what it has now."""

from dataclasses import dataclass


@dataclass
class Counters:
    """Sums over the life of a cache."""

    num_lookups: int = 0  # acquired matches, empty ones too
    num_prompt_tokens: int = 0  # of those lookups
    num_hit_tokens: int = 0
    num_stored_tokens: int = 0
    num_evicted_pages: int = 0
    num_flushed_pages: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A cache at one moment; the first six are sums since its beginning."""

    num_lookups: int
    num_prompt_tokens: int
    num_hit_tokens: int
    num_stored_tokens: int
    num_evicted_pages: int
    num_flushed_pages: int
    num_pages: int
    num_free_pages: int
    num_evictable_pages: int
    num_in_use_pages: int
    num_pinned_pages: int
    num_nodes: int
    num_leases: int
    tick: int

    @property
    def hit_share(self) -> float:
        """Part of the looked-up tokens that were cached; 0 before the first lookup."""
        return self.num_hit_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0
