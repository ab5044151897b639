"""Radix: the prefix cache. Who owns which page, what is cached, what goes first, and why something was missed."""

from .config import RadixConfig
from .events import CacheListener
from .hashing import DEFAULT_NAMESPACE, Namespace, page_hashes
from .lease import Lease, PrefixMatch
from .pages import PagePool
from .prefix_cache import PrefixCache

__all__ = [
    "DEFAULT_NAMESPACE",
    "CacheListener",
    "Lease",
    "Namespace",
    "PagePool",
    "PrefixCache",
    "PrefixMatch",
    "RadixConfig",
    "page_hashes",
]
