"""The summary on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .analysis import OPTIMUM, Analysis, share
from .breakdown import breakdown, sharing
from .parts import explained
from .prefixes import top_prefixes
from .reasons import EXPLANATIONS, Reasons
from .trace import Trace
from .validate import Validation

_ROWS = 8
_DIFFERENCES = 10


def print_summary(console: Console, analysis: Analysis) -> None:
    """What a person wants to know first; every rate says of what it is."""
    trace = analysis.trace
    blocks, tokens = analysis.infinite
    console.print(f"[bold]{escape(trace.name)}[/bold]: {trace.format}, {len(trace):,} requests")
    console.print(
        f"{trace.total_tokens:,} prompt tokens in {trace.num_lookups:,} blocks of {trace.block_size} tokens"
        f" ({trace.num_distinct_blocks:,} distinct)"
    )
    console.print(
        f"A cache that forgets nothing finds {tokens:,} tokens ({_rate(tokens, trace.total_tokens)} of prompt"
        f" tokens) in {blocks:,} blocks ({_rate(blocks, trace.num_lookups)} of blocks)."
    )
    for note in trace.notes:
        console.print(f"[yellow]note[/yellow] {escape(note)}")
    for skip in trace.skipped:
        console.print(
            f"[yellow]left out[/yellow] {skip['count']:,} records, first in line {skip['first_line']:,}:"
            f" {escape(str(skip['reason']))}"
        )
    console.print(_curve_table(analysis))
    _print_sizes(console, analysis)
    console.print(_reason_table(trace, analysis.reasons))
    _print_sharing(console, analysis)
    for name, rows in breakdown(trace, analysis.reasons).items():
        console.print(_breakdown_table(name, rows))
    console.print(_prefix_table(analysis))
    _print_advice(console, analysis)


def print_explanation(console: Console, trace: Trace, reasons: Reasons, request: int) -> None:
    """One prompt, stretch by stretch, and both texts where it parted from another one."""
    found = explained(trace, reasons, request)
    console.print(
        f"[bold]{escape(found['id'])}[/bold]: {found['prompt_tokens']:,} prompt tokens; {found['policy']} with"
        f" {found['size_tokens']:,} tokens of cache"
    )
    table = Table("tokens", "reason", "", box=None, pad_edge=False)
    for part in found["parts"]:
        table.add_row(f"{part['start']:,} … {part['end']:,}", part["reason"], escape(part["detail"]))
    console.print(table)
    if found["reported_cached_tokens"] is not None:
        console.print(f"the server reported {found['reported_cached_tokens']:,} cached tokens")
    if found["diverged_from"] is not None:
        console.print(f"the last prompt that went along: {escape(found['diverged_from'])}")
    if found["texts"] is not None:
        for name, label in (("shared", "both"), ("this", "this one"), ("other", "the other")):
            console.print(f"  {label + ':':<10} {escape(repr(found['texts'][name]))}")


def print_validation(console: Console, validation: Validation) -> None:
    """How many requests agree, the sums, and the largest differences."""
    count = len(validation.ids)
    console.print(f"{validation.num_agreeing:,} of {count:,} requests as predicted")
    if validation.tolerance:
        console.print(f"(to the page: hashes of pages can't tell the last {validation.tolerance} tokens)")
    if validation.tolerance and int(validation.reported.sum()) > int(validation.predicted.sum()):
        console.print(
            "(a server that caches its answers reports more: only an input with them tells how much)"
        )
    total = int(validation.prompt_tokens.sum())
    for name, tokens in (("predicted", validation.predicted), ("reported", validation.reported)):
        console.print(
            f"{name:>9}: {int(tokens.sum()):,} cached tokens ({_rate(int(tokens.sum()), total)} of prompt tokens)"
        )
    table = Table(
        "request", "prompt tokens", "predicted", "reported", title="differences", title_justify="left"
    )
    for shown, (name, prompt, predicted, reported) in enumerate(validation.differences()):
        if shown == _DIFFERENCES:
            break
        table.add_row(escape(name), f"{prompt:,}", f"{predicted:,}", f"{reported:,}")
    if table.row_count:
        console.print(table)


def print_live(console: Console, summary: Mapping[str, Any]) -> None:
    """What a running server counts and holds."""
    metrics = Table("metric", "value", box=None, pad_edge=False)
    for name, value in summary["metrics"].items():
        metrics.add_row(escape(name), f"{value:,.10g}")
    console.print(metrics)
    table = Table(
        "namespace",
        "from token",
        "tokens",
        "reused by requests",
        title="most reused nodes",
        title_justify="left",
    )
    for node in summary["top_nodes"]:
        counts = [f"{int(node.get(name, 0)):,}" for name in ("start", "num_tokens", "hits")]
        table.add_row(escape(str(node.get("namespace", ""))), *counts)
    console.print(table)


def _curve_table(analysis: Analysis) -> Table:
    total = analysis.trace.total_tokens
    table = Table(title="cached, in % of all prompt tokens, by size and policy", title_justify="left")
    table.add_column("tokens of cache", justify="right")
    names = list(analysis.curves)
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("lru's gap (tokens)", justify="right")
    for index, size in enumerate(analysis.sizes):
        points = {name: analysis.curves[name][index] for name in names}
        rates = [f"{100 * share(points[name].hit_tokens, total):.2f}" for name in names]
        gap = points[OPTIMUM].hit_tokens - points["lru"].hit_tokens
        table.add_row(_compact(size * analysis.trace.block_size), *rates, _compact(gap))
    if analysis.same_as_lru:
        table.caption = f"{', '.join(analysis.same_as_lru)}: as lru, since all requests have one priority"
    return table


def _print_sizes(console: Console, analysis: Analysis) -> None:
    block = analysis.trace.block_size
    needed = ", ".join(f"{part:.0%} with {analysis.size_for(part) * block:,}" for part in (0.5, 0.9, 0.99))
    console.print(
        f"Of what can be had at all LRU gets {needed} tokens of cache; the knee is at {analysis.knee_blocks * block:,}."
    )


def _reason_table(trace: Trace, reasons: Reasons) -> Table:
    size = reasons.capacity * trace.block_size
    title = f"reasons, {reasons.policy} with {size:,} tokens of cache"
    table = Table(title=title, title_justify="left")
    table.add_column("reason")
    table.add_column("tokens", justify="right")
    table.add_column("of prompt tokens", justify="right")
    table.add_column("")
    for reason, tokens in reasons.totals().items():
        if tokens:
            table.add_row(
                reason.value, f"{tokens:,}", _rate(tokens, trace.total_tokens), EXPLANATIONS[reason]
            )
    table.add_row("sum", f"{trace.total_tokens:,}", "100.00 %", "")
    return table


def _print_sharing(console: Console, analysis: Analysis) -> None:
    found = sharing(analysis.trace, analysis.touches, analysis.reasons)
    if found is not None:
        hit = found["hit_tokens"]
        console.print(
            f"Of {hit:,} hit tokens {_rate(found['within_session'], hit)} were last used by the same session,"
            f" {_rate(found['across_sessions'], hit)} by another one."
        )


def _breakdown_table(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"by {name.replace('_', ' ')}", title_justify="left")
    table.add_column(name.replace("_", " "), overflow="ellipsis", max_width=40)
    for column in ("requests", "prompt tokens", "cached of prompt tokens"):
        table.add_column(column, justify="right")
    for row in rows[:_ROWS]:
        rate = _rate(row["cached_tokens"], row["prompt_tokens"])
        table.add_row(escape(row["name"]), f"{row['requests']:,}", f"{row['prompt_tokens']:,}", rate)
    if len(rows) > _ROWS:
        table.caption = f"and {len(rows) - _ROWS:,} more"
    return table


def _prefix_table(analysis: Analysis) -> Table:
    table = Table(title="shared prefixes that save most", title_justify="left")
    for column in ("tokens", "requests", "reused tokens"):
        table.add_column(column, justify="right")
    table.add_column("begins", overflow="ellipsis", no_wrap=True, max_width=60)
    for row in top_prefixes(analysis.trace, analysis.tree, _ROWS, "tokens"):
        counts = (row["prefix_tokens"], row["requests"], row["reused_tokens"])
        table.add_row(*(f"{count:,}" for count in counts), escape(" ".join(row["text"].split())))
    return table


def _print_advice(console: Console, analysis: Analysis) -> None:
    console.print("[bold]what would help[/bold] (measured; of prompt tokens)")
    if not analysis.advice:
        console.print("  nothing that is worth two thousandths of the prompt tokens")
    for number, advice in enumerate(analysis.advice, start=1):
        console.print(f"{number}. [bold]{advice.share:+.1%}[/bold] {escape(advice.title)}")
        console.print(f"   {escape(advice.detail)}", style="dim")


def _compact(count: int) -> str:
    """Three digits and a unit, so that a table fits a terminal."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def _rate(part: int, whole: int) -> str:
    return f"{100 * share(part, whole):.2f} %"
