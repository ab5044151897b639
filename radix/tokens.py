"""Arrays of tokens and pages: their types, their validation and how they are compared."""

import numpy as np
import numpy.typing as npt

from .errors import InvalidTokens

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

SHORT_RUN = 64
# Temporary arrays above some 128 KiB come from the kernel anew each time: their page faults cost more than the work.
STRIDE = 8192
NO_PAGES: Int32Array = np.empty(0, dtype=np.int32)


def validate_tokens(tokens: Int32Array, start: int = 0) -> None:
    """Refuse everything but a 1-D int32 array whose values from `start` on are >= 0.

    Raises InvalidTokens, which names the type, shape or the first bad value and its position.
    """
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim != 1:
        kind = (
            f"{tokens.dtype} array of shape {tokens.shape}"
            if isinstance(tokens, np.ndarray)
            else type(tokens)
        )
        raise InvalidTokens(f"tokens must be a one-dimensional int32 array, got {kind}")
    rest = tokens[start:]
    if rest.size and rest.min() < 0:
        position = start + int((rest < 0).argmax())
        raise InvalidTokens(f"token {int(tokens[position])} at position {position} is negative")


def common_length(left: Int32Array, right: Int32Array) -> int:
    """Number of leading equal elements; vectorised, O(length of the shorter)."""
    length = min(len(left), len(right))
    equal = left[:length] == right[:length]
    if equal.all():
        return length
    return int(equal.argmin())


def page_key(tokens: Int32Array) -> bytes:
    """At most one page of tokens as bytes that sort like the tokens (big-endian, values >= 0)."""
    return tokens.astype(">i4").tobytes()


def common_key_length(left: bytes, right: bytes) -> int:
    """Number of leading tokens two page keys share."""
    length = min(len(left), len(right))
    difference = int.from_bytes(left[:length], "big") ^ int.from_bytes(right[:length], "big")
    return (length - (difference.bit_length() + 7) // 8) // 4


def as_index(pages: Int32Array) -> "slice | Int32Array":
    """The pages as an index into arrays by page: a slice where they are one ascending run, else themselves.

    Long runs are common, since pages are handed out that way; a slice costs a fraction of an array of indices.
    """
    if len(pages) == 1 and (only := pages.item()) >= 0:
        return slice(only, only + 1)
    if len(pages) < SHORT_RUN:
        return pages
    first = pages.item(0)
    if first < 0 or pages.item(-1) - first != len(pages) - 1:
        return pages
    for start in range(0, len(pages) - 1, STRIDE):
        part = pages[start : start + STRIDE + 1]
        if not (part[1:] - part[:-1] == 1).all():
            return pages
    return slice(first, first + len(pages))
