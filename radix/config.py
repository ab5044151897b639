"""Settings of the radix room."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trunkline.errors import ConfigError

from .eviction import POLICIES
from .hashing import Namespace, validate_namespace

MAX_PAGE_SIZE = 1024


@dataclass(frozen=True, slots=True)
class RadixConfig:
    """How the prefix cache behaves; checked once, raises ConfigError with the setting and its value.

    page_size: tokens in a page, 1..MAX_PAGE_SIZE.
    eviction_policy: lru, lfu, slru, fifo, priority or gdsf.
    explain: remember evicted pages, so that `explain` can tell them from those never seen.
    ghost_capacity: how many evicted pages are remembered.
    max_pinned_share: largest part of the pool, 0..1, that pins may hold together.
    quotas: part of the pool, 0..1, above which a namespace is evicted first.
    default_quota: the same for namespaces that `quotas` does not name; None for no quota.
    """

    page_size: int = 16
    eviction_policy: str = "lru"
    explain: bool = False
    ghost_capacity: int = 65_536
    max_pinned_share: float = 0.5
    quotas: Mapping[Namespace, float] = field(default_factory=dict, hash=False)
    default_quota: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            raise ConfigError(f"page_size must be 1..{MAX_PAGE_SIZE}, got {self.page_size}")
        if self.eviction_policy not in POLICIES:
            raise ConfigError(f"eviction_policy {self.eviction_policy!r} is not one of {', '.join(POLICIES)}")
        if self.ghost_capacity < 1:
            raise ConfigError(f"ghost_capacity must be at least 1, got {self.ghost_capacity}")
        _require_share("max_pinned_share", self.max_pinned_share)
        for namespace, share in self.quotas.items():
            validate_namespace(namespace)
            _require_share(f"quota of {namespace}", share)
        if self.default_quota is not None:
            _require_share("default_quota", self.default_quota)
        object.__setattr__(self, "quotas", dict(self.quotas))

    def max_pages(self, namespace: Namespace, num_pages: int) -> int | None:
        """The quota of a namespace in a pool of `num_pages`, in pages; None when it has none."""
        share = self.quotas.get(namespace, self.default_quota)
        return None if share is None else int(share * num_pages)


def _require_share(name: str, share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"{name} must be between 0 and 1, got {share}")
