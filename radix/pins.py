"""Prefixes that stay: leases that the cache itself holds, within a share of the pool."""

from dataclasses import dataclass

import numpy as np

from .errors import PinError
from .hashing import Namespace
from .lease import Lease
from .tokens import Int32Array


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned prefix: its first `num_tokens` tokens, whole pages, cannot be evicted until `expires_at`."""

    id: int
    namespace: Namespace
    num_tokens: int
    expires_at: float | None


class Pins:
    """The pins of one cache and how many different pages they hold."""

    def __init__(self, num_pages: int, max_share: float) -> None:
        self.max_pages = int(num_pages * max_share)
        self.num_pages = 0
        self._counts: Int32Array = np.zeros(num_pages + 1, dtype=np.int32)
        self._pins: dict[int, tuple[Pin, Lease]] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._pins)

    def require_room(self, pages: Int32Array) -> None:
        """Raise PinError when pinning these pages would go over the share."""
        total = self.num_pages + int(np.count_nonzero(self._counts[pages] == 0))
        if total > self.max_pages:
            raise PinError(
                f"a pin of {len(pages)} pages would make {total} pinned, {self.max_pages} are allowed"
            )

    def add(self, lease: Lease, num_tokens: int, expires_at: float | None) -> Pin:
        """Enter a lease of whole pages."""
        pin = Pin(self._next_id, lease.namespace, num_tokens, expires_at)
        self._next_id += 1
        self.num_pages += int(np.count_nonzero(self._counts[lease.pages] == 0))
        self._counts[lease.pages] += 1
        self._pins[pin.id] = pin, lease
        return pin

    def remove(self, pin: Pin) -> Lease:
        """Take a pin out and return its lease, to be released. Raises PinError when it is not there."""
        if pin.id not in self._pins:
            raise PinError(
                f"pin {pin.id} of {pin.num_tokens} tokens in {pin.namespace} is not there any more"
            )
        _, lease = self._pins.pop(pin.id)
        self._counts[lease.pages] -= 1
        self.num_pages -= int(np.count_nonzero(self._counts[lease.pages] == 0))
        return lease

    def expired(self, now: float) -> list[Pin]:
        """The pins whose time is over."""
        return [pin for pin, _ in self._pins.values() if pin.expires_at is not None and pin.expires_at <= now]
