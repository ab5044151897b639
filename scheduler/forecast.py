"""How much memory the running requests will still want, learned from those that have finished."""

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_HISTORY = 512
_ENOUGH = 8
_QUANTILE = 0.75
_REFRESH = 16


class OutputLengths:
    """How many tokens requests go on to generate, judged by the last 512 that finished.

    A request that has generated g tokens is expected to reach the upper quartile of the finished lengths
    above g (beyond all of them: twice g), never more than it asked for. Before 8 have finished, half of
    what it asked for. The sorted history is refreshed after every 16 finishes, so a lookup is O(log 512),
    vectorised.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_HISTORY)
        self._sorted: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._unsorted = 0

    def record(self, num_output: int) -> None:
        """A request finished by itself after `num_output` tokens."""
        self._recent.append(num_output)
        self._unsorted += 1
        if (len(self._sorted) < _HISTORY and self._unsorted) or self._unsorted >= _REFRESH:
            self._sorted = np.sort(np.fromiter(self._recent, dtype=np.int64))
            self._unsorted = 0

    def expected_remaining(self, generated: NDArray[np.int64], most: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens still to come of requests that have `generated` and asked for at most `most`."""
        lengths = self._sorted
        if len(lengths) < _ENOUGH:
            total = np.maximum((most + 1) // 2, generated + 1)
        else:
            above = np.searchsorted(lengths, generated, side="right")
            index = above + ((len(lengths) - above) * _QUANTILE).astype(np.int64)
            total = np.where(
                above < len(lengths), lengths[np.minimum(index, len(lengths) - 1)], 2 * generated
            )
        remaining: NDArray[np.int64] = np.minimum(total, most) - generated
        return np.maximum(remaining, 0)


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // page_size)


class Demand(NamedTuple):
    """What one request wants of the pool, in pages.

    `pending`: for known tokens that no page is reserved for; wanted at once. `growth`: for the output that
    is still expected; wanted bit by bit. `own`: what it gives back at its end, beside its growth.
    """

    pending: int
    growth: float
    own: int


class GrowthForecast:
    """Whether one more request fits beside the running ones for as long as they all live.

    With everybody generating one token a step, memory peaks just before some request finishes and gives its
    own pages back. Sorting by what is still expected gives every such peak: O(n log n), and O(1) in the
    usual case that there is room for all growth together. Idea: the past-future scheduler of LightLLM (Gong
    et al.).
    """

    def __init__(self, pending: int, growth: list[float], own: list[int]) -> None:
        self._pending = pending
        self._growth = growth
        self._own = own
        self._total_growth = sum(growth)

    def fits(self, available: int, candidate: Demand) -> bool:
        """Whether `available` pages last for the running requests and the candidate."""
        left = available - self._pending - candidate.pending
        if left >= self._total_growth + candidate.growth:
            return True
        if left < 0:
            return False
        growth = np.array([*self._growth, candidate.growth])
        own = np.array([*self._own, candidate.own])
        order = np.argsort(growth, kind="stable")
        growth, own = growth[order], own[order]
        num_alive = len(order) - np.arange(len(order))
        # Just before the i-th finishes, all alive have grown as much as it; those before it are gone.
        peaks = num_alive * growth - (np.cumsum(own) - own)
        return bool(peaks.max() <= left)

    def add(self, demand: Demand) -> None:
        """One more request runs."""
        self._pending += demand.pending
        self._growth.append(demand.growth)
        self._own.append(demand.own)
        self._total_growth += demand.growth
