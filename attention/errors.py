"""Everything attention/ raises on purpose."""

from trunkline.errors import TrunklineError


class AttentionError(TrunklineError):
    """Base of the errors of this room."""


class MetadataError(AttentionError, ValueError):
    """A step's metadata is inconsistent, or names pages that the pool does not have."""


class PageCopyError(AttentionError, ValueError):
    """A list of page copies names pages outside a pool, or writes one page twice."""


class UnknownBackend(AttentionError, ValueError):
    """No attention backend has this name."""
