"""What can go wrong in the radix room, one tree of exceptions.

RadixError
├── PageError            pages
│   ├── OutOfPages
│   └── PageStateError
├── InvalidTokens        also a ValueError
├── UnknownNamespace     also a ValueError
├── LeaseError
│   ├── LeaseReleased
│   ├── CommitError
│   └── StaleMatch
├── PinError
└── InvariantViolated
"""

from trunkline.errors import TrunklineError


class RadixError(TrunklineError):
    """Base of every error of the radix room."""


class PageError(RadixError):
    """A page operation that the pool refuses; the pool is unchanged."""


class OutOfPages(PageError):
    """More pages were asked for than are free."""


class PageStateError(PageError):
    """A page is not in the state the operation needs (free, held, out of range, given twice)."""


class InvalidTokens(RadixError, ValueError):
    """Tokens that are not a one-dimensional int32 array of values >= 0."""


class UnknownNamespace(RadixError, ValueError):
    """A namespace that is not a pair (known kind, value)."""


class LeaseError(RadixError):
    """A lease is used in a way its state does not allow; nothing is changed."""


class LeaseReleased(LeaseError):
    """The lease was given back before."""


class CommitError(LeaseError):
    """The lease has too few pages for the tokens that should be committed."""


class StaleMatch(LeaseError):
    """What the match had found was evicted before it was acquired: match again."""


class PinError(RadixError):
    """A pin that is refused (nothing cached, over the share) or is not there."""


class InvariantViolated(RadixError):
    """`check()` recomputed something and found another value than the one that was kept."""
