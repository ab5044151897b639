"""What a simulation says about itself: samples taken on the virtual clock and the figures made of them."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles (nearest rank: a sample that so many do not exceed) and maximum, seconds."""

    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, samples: Sequence[float], counts: Sequence[int] | None = None) -> "Distribution | None":
        """The distribution of samples, each `counts` times; None if there is none."""
        values = np.asarray(samples, np.float64)
        if not len(values):
            return None
        # Sorted before they are summed, so that the mean does not depend on how the samples were grouped.
        values = np.sort(values if counts is None else np.repeat(values, counts))
        p50, p99 = (float(values[-(-len(values) * share // 100) - 1]) for share in (50, 99))
        return cls(float(values.mean()), p50, p99, float(values[-1]))


@dataclass(frozen=True, slots=True)
class Level:
    """Something that has a value at every moment: its mean over the virtual time and its largest value."""

    mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The figures of one simulation. Times in virtual seconds, rates per virtual second.

    Args:
        num_refused: requests that can never fit in the KV cache.
        num_failed: requests that the scheduler gave up.
        hit_rate: cached_prompt_tokens / prompt_tokens, both over the finished requests; cached are the prompt
            tokens that were found in the cache when the request was first admitted.
        kv_in_use: share of the KV pages that running requests hold.
        kv_occupied: the same with pages that only the cache keeps.
        running: requests that were admitted and aren't finished.
        queued: requests that have arrived and are not running.
        itl: gaps between a request's consecutive tokens.
        end_to_end: from arrival to last token.
    """

    num_requests: int
    num_finished: int
    num_refused: int
    num_failed: int
    seconds: float
    num_steps: int
    prompt_tokens: int
    cached_prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    requests_per_second: float
    hit_rate: float
    ttft: Distribution | None
    itl: Distribution | None
    end_to_end: Distribution | None
    kv_in_use: Level
    kv_occupied: Level
    running: Level
    queued: Level
    num_preemptions: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return asdict(self)


class LevelMeter:
    """Integrates several levels over time. All levels hold from one mark to the next."""

    def __init__(self, count: int) -> None:
        self._area = np.zeros(count)
        self._peak = np.zeros(count)
        self._time = 0.0
        self._seconds: array[float] = array("d")
        self._values: array[float] = array("d")
        self._count = count

    def hold(self, seconds: float, levels: Iterable[float]) -> None:
        """The levels were these for so long."""
        self._seconds.append(seconds)
        self._values.extend(levels)
        if len(self._seconds) >= 4096:
            self._fold()

    def levels(self) -> list[Level]:
        """Mean and peak of each level so far."""
        self._fold()
        time = self._time or 1.0
        return [
            Level(float(area / time), float(peak)) for area, peak in zip(self._area, self._peak, strict=True)
        ]

    def _fold(self) -> None:
        if not self._seconds:
            return
        seconds: NDArray[np.float64] = np.array(self._seconds)
        values = np.array(self._values).reshape(-1, self._count)
        self._area += seconds @ values
        self._peak = np.maximum(self._peak, values.max(axis=0))
        self._time += float(seconds.sum())
        del self._seconds[:], self._values[:]
