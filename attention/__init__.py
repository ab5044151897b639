"""The kernels' contract: where keys and values lie, and how a step attends to them. Imports no room."""

from .base import AttentionBackend, backend_names, make_backend
from .config import AttentionConfig
from .errors import AttentionError, MetadataError, PageCopyError, UnknownBackend
from .kv_pool import HostPool, KVPool
from .metadata import AttentionMetadata

__all__ = [
    "AttentionBackend",
    "AttentionConfig",
    "AttentionError",
    "AttentionMetadata",
    "HostPool",
    "KVPool",
    "MetadataError",
    "PageCopyError",
    "UnknownBackend",
    "backend_names",
    "make_backend",
]
