"""Fit a device's efficiencies and overhead to steps that were measured on it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trunkline.errors import ConfigError

from .roofline import Roofline, StepLoad, StepParts

_MIN_STEPS = 4
_MAX_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step that really ran: its load and its seconds."""

    load: StepLoad
    seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted cost model and how far it is from the measurements.

    `mean_error` and `max_error` are relative (|predicted - measured| / measured). `fitted` names what the
    steps could tell: with steps that are all bound by memory, arithmetic keeps its preset.
    """

    roofline: Roofline
    num_steps: int
    mean_error: float
    max_error: float
    fitted: tuple[str, ...]


def read_measured_steps(rows: Iterable[Mapping[str, Any]]) -> list[MeasuredStep]:
    """Measured steps from rows with `tokens`, `attended`, `seconds`; maybe `requests`, `sampled`, `context`.

    `requests` defaults to 1, `sampled` to `requests`, and `context` to what `requests` equal chunks of
    these tokens would read, attended / tokens each.

    Raises:
        ConfigError: names the row (counted from 1), the key and the value.
    """
    steps = []
    for number, row in enumerate(rows, start=1):

        def value(
            key: str, default: float | None = None, row: Mapping[str, Any] = row, number: int = number
        ) -> float:
            found = row.get(key, default)
            if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < float("inf"):
                raise ConfigError(f"measured step {number}: {key} must be a positive number, got {found!r}")
            return float(found)

        tokens, attended, requests = value("tokens"), value("attended"), value("requests", 1)
        load = StepLoad(
            tokens=int(tokens),
            sampled=int(value("sampled", requests)),
            attended=int(attended),
            context=int(value("context", max(1.0, attended / tokens * requests))),
        )
        steps.append(MeasuredStep(load, value("seconds")))
    return steps


def calibrate(roofline: Roofline, steps: Sequence[MeasuredStep]) -> Calibration:
    """Fit 1/flops_efficiency, 1/bandwidth_efficiency and the step overhead: least squares of relative errors.

    A roofline is piecewise linear in these three: each round says which side of each maximum is active
    under the current fit, then solves the linear problem that is left (coefficients not negative); it stops
    when no side changes. Launch overhead per layer cannot be told from overhead per step, so the fit gives
    the sum to the step.

    Raises:
        ConfigError: fewer than four steps.
    """
    if len(steps) < _MIN_STEPS:
        raise ConfigError(f"a calibration needs at least {_MIN_STEPS} measured steps, got {len(steps)}")
    parts = [roofline.parts(step.load) for step in steps]
    measured = np.array([step.seconds for step in steps])
    device = roofline.device
    preset = np.array(
        [
            1 / device.flops_efficiency,
            1 / device.bandwidth_efficiency,
            device.step_overhead + roofline.model.num_layers * device.layer_overhead,
        ]
    )
    factors = preset
    target = 1 - np.array([part.other for part in parts]) / measured
    columns = _columns(parts, factors)
    for _ in range(_MAX_ROUNDS):
        factors = _non_negative_fit(columns / measured[:, None], target, preset)
        changed = _columns(parts, factors)
        if np.array_equal(changed, columns):
            break
        columns = changed
    predicted = _columns(parts, factors) @ factors + (1 - target) * measured
    errors = np.abs(predicted - measured) / measured
    told = [bool(column.any()) for column in columns.T]
    fitted_device = replace(
        device,
        flops_efficiency=float(1 / factors[0]),
        bandwidth_efficiency=float(1 / factors[1]),
        step_overhead=float(factors[2]),
        layer_overhead=0.0,
    )
    names = ("flops_efficiency", "bandwidth_efficiency", "step_overhead")
    return Calibration(
        roofline.with_device(fitted_device),
        len(steps),
        float(errors.mean()),
        float(errors.max()),
        tuple(name for name, known in zip(names, told, strict=True) if known),
    )


def _columns(parts: Sequence[StepParts], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of (seconds of arithmetic, seconds of memory, 1): the sides that are active under `factors`."""
    rows = np.zeros((len(parts), 3))
    rows[:, 2] = 1.0
    for row, part in zip(rows, parts, strict=True):
        for arithmetic, memory in (
            (part.linear_arithmetic, part.linear_memory),
            (part.attention_arithmetic, part.attention_memory),
        ):
            if arithmetic * factors[0] >= memory * factors[1]:
                row[0] += arithmetic
            else:
                row[1] += memory
    return rows


def _non_negative_fit(
    rows: NDArray[np.float64], target: NDArray[np.float64], preset: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Least squares with coefficients > 0, by trying every support; unseen columns keep their preset.

    An efficiency must stay finite, so only the overhead may end up at zero.
    """
    seen = [column for column in range(3) if rows[:, column].any()]
    best, best_error = preset, float("inf")
    required = {0, 1} & set(seen)
    for size in range(1, len(seen) + 1):
        for support in combinations(seen, size):
            if not required <= set(support):
                continue
            solution = np.linalg.lstsq(rows[:, support], target, rcond=None)[0]
            error = float(np.sum((rows[:, support] @ solution - target) ** 2))
            if (solution > 0).all() and error < best_error:
                best = np.where(np.isin(np.arange(3), seen), 0.0, preset)
                best[list(support)] = solution
                best_error = error
    return best
