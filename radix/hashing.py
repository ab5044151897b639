"""Namespaces and chained page hashes: where to look, never whether it is equal."""

import numpy as np
from xxhash import xxh3_64_digest

from .errors import UnknownNamespace
from .tokens import Int32Array, UInt64Array

Namespace = tuple[str, str]

DEFAULT_NAMESPACE: Namespace = ("default", "")
NAMESPACE_KINDS = ("default", "salt", "adapter", "tenant")


def validate_namespace(namespace: Namespace) -> None:
    """Raise UnknownNamespace unless `namespace` is a pair (one of NAMESPACE_KINDS, str)."""
    match namespace:
        case (str(kind), str()) if kind in NAMESPACE_KINDS:
            return
    raise UnknownNamespace(
        f"namespace {namespace!r} is not a pair (kind, value) with a kind of {', '.join(NAMESPACE_KINDS)}"
    )


def namespace_seed(namespace: Namespace) -> bytes:
    """Eight bytes that start the hash chain of a namespace; kind and value cannot run into each other."""
    validate_namespace(namespace)
    kind, value = namespace
    return xxh3_64_digest(kind.encode() + b"\0" + value.encode())


def chain_hashes(tokens: Int32Array, page_size: int, parent: bytes) -> UInt64Array:
    """Chain hashes of the whole pages of `tokens` behind a parent's digest.

    h[i] = xxh3_64(digest of h[i-1] + the page's tokens as int32); a last partial page has none. O(pages).
    """
    width = 4 * page_size
    data = tokens.tobytes()
    digests = []
    for end in range(width, len(data) + 1, width):
        parent = xxh3_64_digest(parent + data[end - width : end])
        digests.append(parent)
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def page_hashes(tokens: Int32Array, page_size: int, namespace: Namespace = DEFAULT_NAMESPACE) -> UInt64Array:
    """Chain hash of each whole page of a sequence in its namespace: uint64, len(tokens) // page_size."""
    return chain_hashes(tokens, page_size, namespace_seed(namespace))


def hash_digest(chain_hash: np.uint64) -> bytes:
    """The digest that goes on a chain which ended with `chain_hash`."""
    return int(chain_hash).to_bytes(8, "big")
