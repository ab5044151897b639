"""The analysis as pandas frames."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from .breakdown import breakdown, divergence_histogram, time_axis
from .extras import need
from .prefixes import top_prefixes

if TYPE_CHECKING:
    from .analysis import Analysis

_TOP = 200


class Frames:
    """Frames of one analysis, each made when it is asked for. Raises MissingExtra without pandas."""

    def __init__(self, analysis: Analysis) -> None:
        self._pandas = need("pandas")
        self._analysis = analysis
        self._document = analysis.to_dict()

    @cached_property
    def requests(self) -> Any:
        """One row a request: what it is, its tokens by reason, where it diverged and what would have kept it."""
        trace, reasons = self._analysis.trace, self._analysis.reasons
        columns: dict[str, Any] = {
            "id": trace.ids,
            "time": trace.time,
            "prompt_tokens": trace.num_tokens,
            "output_tokens": trace.num_output_tokens,
            **{
                name: [labels.names[code] for code in labels.codes]
                for name in ("tenant", "namespace", "model", "session", "call_site")
                if (labels := getattr(trace, name)).is_informative
            },
            **{reason.value: tokens for reason, tokens in reasons.tokens.items()},
            "diverged_at": reasons.diverged_at,
            "siblings": reasons.siblings,
            "idle_s": reasons.idle,
            "size_that_keeps_tokens": reasons.needed * trace.block_size,
        }
        return self._pandas.DataFrame(columns)

    @cached_property
    def curves(self) -> Any:
        """One row for each policy and size, with hits in blocks and tokens."""
        rows = [
            {"policy": name, **point} for name, points in self._document["curves"].items() for point in points
        ]
        return self._pandas.DataFrame(rows)

    @cached_property
    def lru(self) -> Any:
        """The LRU curve at every size: hit blocks and tokens, indexed by the size in blocks."""
        curve = self._analysis.curve
        index = self._pandas.RangeIndex(len(curve.blocks), name="size_blocks")
        return self._pandas.DataFrame({"hit_blocks": curve.blocks, "hit_tokens": curve.tokens}, index=index)

    @cached_property
    def reasons(self) -> Any:
        """Tokens of each reason and their share of all prompt tokens."""
        totals = self._analysis.reasons.totals()
        frame = self._pandas.DataFrame({"reason": [r.value for r in totals], "tokens": list(totals.values())})
        frame["share_of_prompt_tokens"] = frame["tokens"] / self._analysis.trace.total_tokens
        return frame

    @cached_property
    def advice(self) -> Any:
        """What would help, the largest gain first."""
        return self._pandas.DataFrame(self._document["advice"])

    @cached_property
    def prefixes(self) -> Any:
        """The shared prefixes that save most tokens."""
        analysis = self._analysis
        return self._pandas.DataFrame(top_prefixes(analysis.trace, analysis.tree, _TOP, "tokens"))

    @cached_property
    def time(self) -> Any:
        """Tokens by reason in equal stretches of time."""
        return self._flat(time_axis(self._analysis.trace, self._analysis.reasons))

    @cached_property
    def divergence(self) -> Any:
        """Requests by how many tokens they share."""
        return self._pandas.DataFrame(divergence_histogram(self._analysis.trace, self._analysis.reasons))

    def by(self, dimension: str) -> Any:
        """The breakdown by tenant, namespace, model, session or call_site; empty where all are alike."""
        return self._flat(breakdown(self._analysis.trace, self._analysis.reasons).get(dimension, []))

    def _flat(self, rows: list[dict[str, Any]]) -> Any:
        flat = [{**{k: v for k, v in row.items() if k != "tokens"}, **row["tokens"]} for row in rows]
        return self._pandas.DataFrame(flat).fillna(0)
