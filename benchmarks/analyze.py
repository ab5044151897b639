"""How long the analysis takes, on real traces: `python benchmarks/analyze.py [FILE ...]`.

For each file: reading, the exact LRU curve at every size, the whole analysis (all policies at 14 sizes, optimum,
reasons, advice), the HTML page, and the peak memory of this process. Without files those in `benchmarks/data`.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trunkline.frontend.analyze.analysis import analyse
from trunkline.frontend.analyze.reading import read_trace
from trunkline.frontend.analyze.touches import lru_curve, touch

DATA = Path(__file__).resolve().parent / "data"
FILES = ("mooncake_conversation.jsonl.gz", "claude_code_sessions_103.jsonl.gz")
COLUMNS = (
    "file",
    "requests",
    "blocks",
    "read s",
    "LRU curve s",
    "analysis s",
    "HTML s",
    "in all s",
    "peak MB",
)


def measure(path: Path) -> list[str]:
    """One row of the table."""
    times = [time.perf_counter()]
    trace = read_trace(path)
    times.append(time.perf_counter())
    lru_curve(trace, touch(trace))
    times.append(time.perf_counter())
    analysis = analyse(trace)
    times.append(time.perf_counter())
    analysis.html()
    times.append(time.perf_counter())
    read, curve, whole, html = (after - before for before, after in itertools.pairwise(times))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = [f"{seconds:.2f}" for seconds in (read, curve, whole, html, read + whole + html)]
    return [path.name, f"{len(trace):,}", f"{trace.num_lookups:,}", *figures, f"{peak:,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=[DATA / name for name in FILES])
    table = Table(*COLUMNS)
    for path in parser.parse_args().files:
        table.add_row(*measure(path))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
