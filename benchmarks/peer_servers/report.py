"""Tables of what was measured: medians, and how many times longer the others took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["medians", "notes", "ratios", "report"]

Run = Mapping[str, Any]
Medians = dict[str, dict[str, dict[str, float | None]]]
FIGURES = {
    "wall_s": "wall s",
    "output_tok_s": "output tok/s",
    "ttft_p50_s": "TTFT p50 s",
    "itl_p50_s": "ITL p50 s",
    "itl_p99_s": "ITL p99 s",
    "itl_max_s": "ITL max s",
    "long_ttft_s": "long TTFT s",
    "cached_tokens": "cached",
}
IN_MEAN = ("W1", "W2", "W3", "W4", "W5")
COMPANY = 0.1


def good(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not run["errors"]]


def medians(runs: Sequence[Run]) -> Medians:
    """workload -> server -> figure -> median over the runs without errors; both in the order of first appearance."""
    grouped: dict[str, dict[str, list[Run]]] = {}
    for run in good(runs):
        grouped.setdefault(run["workload"], {}).setdefault(run["server"], []).append(run)
    return {
        workload: {
            server: {name: _median([run.get(name) for run in some]) for name in FIGURES}
            | {"runs": len(some), "fastest": _least(some), "slowest": -_least(some, -1)}
            for server, some in servers.items()
        }
        for workload, servers in sorted(grouped.items())
    }


def ratios(found: Medians, base: str) -> dict[str, dict[str, float]]:
    """server -> workload -> its median wall time by that of `base`; "mean" is the geometric one of W1 to W5.

    A program with several configurations gets a row for the best of them at each workload.
    """
    walls = {
        workload: {server: figures["wall_s"] for server, figures in servers.items()}
        for workload, servers in found.items()
    }
    table: dict[str, dict[str, float]] = {}
    for workload, seconds in walls.items():
        ours = seconds.get(base)
        if ours is None:
            continue
        for server, theirs in seconds.items():
            if server != base and theirs is not None:
                table.setdefault(server, {})[workload] = theirs / ours
    vllm = {server: row for server, row in table.items() if server.startswith("vllm")}
    if len(vllm) > 1:
        workloads = {workload for row in vllm.values() for workload in row}
        table["vllm, the best"] = {
            workload: min(row[workload] for row in vllm.values() if workload in row)
            for workload in sorted(workloads)
        }
    for row in table.values():
        if all(workload in row for workload in IN_MEAN):
            row["mean"] = statistics.geometric_mean(row[workload] for workload in IN_MEAN)
    return table


def notes(runs: Sequence[Run]) -> list[str]:
    """What a reader must know of single runs: errors, answers that ended early, others on the cores."""
    found = []
    for run in runs:
        name = f"{run['workload']} on {run['server']}, repeat {run['repeat']}"
        if run["errors"]:
            found.append(f"{name}: {run['errors']} errors, left out: {run.get('first_error')}")
        elif run["output_tokens"] < run["asked_tokens"]:
            found.append(f"{name}: {run['output_tokens']} of {run['asked_tokens']} tokens came")
        if max(run["others"], run["stolen"]) > COMPANY:
            found.append(f"{name}: others had {run['others']} cores, the hypervisor {run['stolen']}")
    return found


def report(runs: Sequence[Run]) -> str:
    """All tables in Markdown."""
    found = medians(runs)
    parts = [_median_table(found)]
    servers = dict.fromkeys(server for figures in found.values() for server in figures)
    for base in servers:
        if base.startswith(("floor", "trunkline")) and (rows := ratios(found, base)):
            parts.append(f"Wall time by that of {base}:\n\n{_ratio_table(rows, list(found))}")
    parts += notes(runs)
    return "\n\n".join(parts)


def _median_table(found: Medians) -> str:
    rows = [["workload", "server", "runs", *FIGURES.values(), "wall from – to"]]
    for workload, servers in found.items():
        for server, figures in servers.items():
            shown = [_number(figures[name]) for name in FIGURES]
            spread = f"{_number(figures['fastest'])} – {_number(figures['slowest'])}"
            rows.append([workload, server, _number(figures["runs"]), *shown, spread])
    return _markdown(rows)


def _ratio_table(table: Mapping[str, Mapping[str, float]], workloads: Sequence[str]) -> str:
    columns = [*workloads, "mean"]
    rows = [["server", *workloads, "W1–W5, geometric mean"]]
    rows += [
        [server, *(f"{row[name]:.2f}" if name in row else "" for name in columns)]
        for server, row in table.items()
    ]
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _least(runs: Sequence[Run], sign: int = 1) -> float:
    return min(sign * float(run["wall_s"]) for run in runs)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
