"""The prefix cache: which pages are whose, what is cached, what goes first, why something is not there."""

from .config import RadixConfig
from .errors import RadixError
from .events import CacheListener, HitListener
from .eviction import POLICIES
from .explain import Explanation, Part, Reason
from .hashing import DEFAULT_NAMESPACE, NAMESPACE_KINDS, Namespace, page_hashes
from .lease import Lease, PrefixMatch
from .pages import PagePool
from .pins import Pin
from .prefix_cache import PrefixCache
from .snapshot import TopPrefix
from .stats import CacheStats

__all__ = [
    "DEFAULT_NAMESPACE",
    "NAMESPACE_KINDS",
    "POLICIES",
    "CacheListener",
    "CacheStats",
    "Explanation",
    "HitListener",
    "Lease",
    "Namespace",
    "PagePool",
    "Part",
    "Pin",
    "PrefixCache",
    "PrefixMatch",
    "RadixConfig",
    "RadixError",
    "Reason",
    "TopPrefix",
    "page_hashes",
]
