"""Memory behind KV pages before requests write them."""

from __future__ import annotations

from trunkline.attention import KVPool
from trunkline.attention.memory import populate
from trunkline.radix import PagePool

__all__ = ["Backing"]

LEAD_BYTES = 512 << 20
PIECE_BYTES = 2 << 20  # about a large page: short enough for a request to wait


class Backing:
    """Keeps memory behind the next `LEAD_BYTES` of pages beyond the highest one that was ever handed out.

    The operating system only promises a pool's memory, so that a large pool costs nothing until it is used. The first
    write pays, and most in a virtual machine whose host has to find the memory too. There is no thread for it: beside
    a step it would take the cores that the step computes on. Whoever has time to spare calls `advance`.
    """

    def __init__(self, kv_pool: KVPool, pages: PagePool) -> None:
        self._areas = kv_pool.data.flatten(0, 1)  # a layer's keys or values each
        self._is_on_host = kv_pool.device.type == "cpu"
        self._pages = pages
        self._lead = LEAD_BYTES // self._areas[:, 0].nbytes
        self._stretch = max(1, PIECE_BYTES // self._areas[0, 0].nbytes)
        self._done = 0

    def advance(self) -> bool:
        """Backs a stretch of pages in one layer's keys or values; false where nothing is left to do for now."""
        highest = self._pages.highest
        self._done = max(self._done, highest // self._stretch * len(self._areas))
        stretch, area = divmod(self._done, len(self._areas))
        first = stretch * self._stretch
        if not self._is_on_host or first > min(highest + self._lead, self._pages.num_pages):
            return False
        populate(self._areas[area, first : first + self._stretch])
        self._done += 1
        return True
