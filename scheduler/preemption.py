"""What becomes of a victim's pages: dropped and computed again, or copied to host memory and back."""

from collections.abc import Sequence

import numpy as np

from trunkline.radix.pages import PagePool
from trunkline.radix.tokens import NO_PAGES, Int32Array

from .config import PreemptionMode
from .cost import CopyRates
from .errors import InvariantError
from .state import RequestState, SwappedPages

# The rule of thumb of the mode `heuristic`: outputs below this share of the prompt are cheap to compute
# again.
SHORT_OUTPUT = 0.2


class HostSpace:
    """Host pages for swapped requests, and the choice between swapping and computing again.

    Host pages are numbered from 1; the runner owns their memory and executes the copies that plans ask for.
    """

    def __init__(self, mode: PreemptionMode, num_pages: int, page_size: int, rates: CopyRates) -> None:
        self._mode = mode
        self._page_size = page_size
        self._rates = rates
        self._pool = PagePool(num_pages, page_size) if num_pages else None

    @property
    def num_in_use(self) -> int:
        """Host pages that hold a preempted request's tokens."""
        return 0 if self._pool is None else self._pool.num_in_use

    def swap_out(self, state: RequestState) -> Int32Array | None:
        """Take host pages for a victim's own pages if it is to be swapped: pairs (device page, host page).

        Pages that came from a shared prefix stay where they are. None when the victim is to be computed
        again: because of the mode, because nothing of its own is computed, or because host memory is full.
        """
        assert state.lease is not None
        first = state.num_shared_pages
        count = -(-state.num_computed // self._page_size) - first
        if (
            self._pool is None
            or count <= 0
            or count > self._pool.num_free
            or not self._wants_swap(state, count)
        ):
            return None
        host = self._pool.allocate(count)
        state.swapped = SwappedPages(first, host, state.num_computed)
        return np.stack([state.lease.pages[first : first + count], host], axis=1)

    def give_back(self, host_pages: Int32Array) -> None:
        """These host pages are not needed any more."""
        if self._pool is not None and len(host_pages):
            self._pool.release(host_pages)

    def check(self, states: Sequence[RequestState], in_transit: Sequence[Int32Array]) -> None:
        """Raise unless the host pages in use are those of `states` and those that a plan is copying back."""
        if self._pool is None:
            return
        self._pool.check()
        held = [state.swapped.host_pages for state in states if state.swapped is not None]
        pages = np.concatenate([NO_PAGES, *held, *in_transit])
        if len(np.unique(pages)) != len(pages) or len(pages) != self._pool.num_in_use:
            raise InvariantError(
                f"{self._pool.num_in_use} host pages are in use, swapped requests have {len(pages)}"
            )

    def _wants_swap(self, state: RequestState, num_pages: int) -> bool:
        match self._mode:
            case "recompute":
                return False
            case "swap":
                return True
            case "heuristic":
                return state.num_output >= SHORT_OUTPUT * state.num_prompt
            case "auto":
                per_token, per_page = self._rates.seconds_per_token, self._rates.seconds_per_page
                if per_token is None or per_page is None:
                    return per_page is None
                own_tokens = state.num_computed - state.num_shared_pages * self._page_size
                return 2 * num_pages * per_page < own_tokens * per_token
