"""The analysis as plotly figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .extras import need
from .prefixes import drawn_tree

if TYPE_CHECKING:
    from .analysis import Analysis

_TREE_NODES = 400


class Figures:
    """Figures of one analysis. Raises MissingExtra without plotly."""

    def __init__(self, analysis: Analysis) -> None:
        self._plotly = need("plotly.graph_objects")
        self._analysis = analysis

    def curves(self) -> Any:
        """Share of prompt tokens found at each size, a line for each policy and the optimum."""
        total = self._analysis.trace.total_tokens
        figure = self._plotly.Figure()
        for name, points in self._analysis.curves.items():
            figure.add_scatter(
                x=[point.size_tokens for point in points],
                y=[point.hit_tokens / total for point in points],
                name=name,
                mode="lines+markers",
            )
        figure.update_xaxes(type="log", title="cache size in tokens")
        figure.update_yaxes(tickformat=".1%", title="cached of all prompt tokens", rangemode="tozero")
        return figure

    def reasons(self) -> Any:
        """Tokens by reason."""
        totals = {reason.value: count for reason, count in self._analysis.reasons.totals().items() if count}
        figure = self._plotly.Figure(
            self._plotly.Bar(x=list(totals.values()), y=list(totals), orientation="h")
        )
        figure.update_xaxes(title="prompt tokens")
        return figure

    def time(self) -> Any:
        """Tokens by reason along the time."""
        frame = self._analysis.frames.time
        figure = self._plotly.Figure()
        for reason in self._analysis.reasons.tokens:
            if reason.value in frame:
                figure.add_bar(x=frame["start_s"], y=frame[reason.value], name=reason.value)
        figure.update_layout(barmode="stack")
        figure.update_xaxes(title="seconds")
        figure.update_yaxes(title="prompt tokens")
        return figure

    def divergence(self) -> Any:
        """Requests by how many tokens they share with earlier ones."""
        frame = self._analysis.frames.divergence
        names = [str(start) for start in frame["from_tokens"]]
        figure = self._plotly.Figure(self._plotly.Bar(x=names, y=frame["requests"]))
        figure.update_xaxes(title="shared tokens, at least", type="category")
        figure.update_yaxes(title="requests")
        return figure

    def tree(self) -> Any:
        """The tree of prefixes; click to zoom."""
        rows = [
            row
            for row in drawn_tree(self._analysis.trace, self._analysis.tree, _TREE_NODES)
            if row["id"] >= 0
        ]
        names = [f"{row['text'][:60]} ({row['tokens']:,} tokens)" for row in rows]
        parents = [str(row["parent"]) if row["parent"] >= 0 else "" for row in rows]
        ids = [str(row["id"]) for row in rows]
        values = [row["requests"] for row in rows]
        return self._plotly.Figure(self._plotly.Icicle(ids=ids, labels=names, parents=parents, values=values))
