"""The whole analysis of one trace, as an object to ask and as a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from trunkline.radix.eviction import POLICIES

from .advice import Advice, Situation, advise
from .breakdown import breakdown, divergence_histogram, sharing, time_axis
from .chains import Chains, build_chains
from .errors import AnalyzeError
from .optimum import optimum_hits
from .policies import Job, PolicyRuns, Replayable
from .prefixes import PrefixTree, prefix_tree, top_prefixes
from .progress import Listener, Silent
from .reasons import Reason, Reasons, find_reasons
from .touches import LruCurve, Touches, lru_curve, touch
from .trace import Trace
from .types import Int64Array

SCHEMA = "trunkline.analysis.v1"
NUM_SIZES = 14
OPTIMUM = "optimum"
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
TOP_PREFIXES = 20
_SMALLEST_SIZES = 64


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """What is analysed.

    policies: those with a curve besides LRU's and the optimum's; all of the cache's if None. size_tokens: cache
    size for reasons and advice; the server's own where the log tells it, else the knee of the LRU curve (or
    the longest prompt, if that is more). policy:
    the eviction policy for reasons. twins_share: a request waits for a prefix that another is computing.
    """

    policies: tuple[str, ...] | None = None
    size_tokens: int | None = None
    policy: str = "lru"
    num_sizes: int = NUM_SIZES
    twins_share: bool = True
    with_advice: bool = True

    def __post_init__(self) -> None:
        for policy in (self.policy, *(self.policies or ())):
            if policy not in POLICIES:
                raise AnalyzeError(f"policy {policy!r} is not one of {', '.join(POLICIES)}")
        if self.size_tokens is not None and self.size_tokens < 1:
            raise AnalyzeError(f"a cache of {self.size_tokens} tokens holds nothing")
        if not 2 <= self.num_sizes <= 200:
            raise AnalyzeError(f"the number of sizes must be 2..200, got {self.num_sizes}")


@dataclass(frozen=True, slots=True)
class Point:
    """One size of one curve. `steady_...` count only the requests after the cache could first be full."""

    size_blocks: int
    size_tokens: int
    hit_blocks: int
    hit_tokens: int
    steady_hit_blocks: int
    steady_lookup_blocks: int


@dataclass(eq=False)
class Analysis:
    """What `trunkline analyze` found out. `hit_tokens_at_size` has every policy and the optimum at the size
    of `reasons`. `frames` and `figures` are for notebooks (extra `analyze`)."""

    trace: Trace
    options: AnalysisOptions
    curve: LruCurve
    chains: Chains
    touches: Touches
    sizes: tuple[int, ...]
    curves: dict[str, tuple[Point, ...]]
    reasons: Reasons
    advice: tuple[Advice, ...]
    hit_tokens_at_size: dict[str, int]
    same_as_lru: tuple[str, ...] = field(default=())

    @cached_property
    def tree(self) -> PrefixTree:
        return prefix_tree(self.trace)

    @property
    def frames(self) -> Any:
        """pandas frames: requests, curves, reasons, advice, prefixes, time, and one for each breakdown."""
        from .frames import Frames

        return Frames(self)

    @property
    def figures(self) -> Any:
        """plotly figures: curves, reasons, time, divergence, tree."""
        from .figures import Figures

        return Figures(self)

    @property
    def infinite(self) -> tuple[int, int]:
        """Blocks and tokens hit by a cache that forgets nothing."""
        seen = self.trace.seen_lookups()
        return int(seen.sum()), int(self.trace.hit_tokens(seen).sum())

    @property
    def knee_blocks(self) -> int:
        return knee(self.curve)

    def size_for(self, share: float) -> int:
        """The smallest LRU cache, in blocks, with at least this share of the infinite cache's hit tokens."""
        best = int(self.curve.tokens[-1])
        return int(np.searchsorted(self.curve.tokens, np.ceil(share * best)))

    def html(self) -> str:
        """The report: one page that needs nothing else."""
        from .html import render

        return render(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values, equal from run to run."""
        trace = self.trace
        hit_blocks, hit_tokens = self.infinite
        return {
            "schema": SCHEMA,
            "input": {
                "name": trace.name,
                "format": trace.format,
                "block_size": trace.block_size,
                "outputs_cached": trace.outputs_cached,
                "tokenizer": trace.text.tokenizer if trace.text is not None else None,
                "skipped": list(trace.skipped),
                "notes": list(trace.notes),
                "server": dict(trace.server),
            },
            "totals": {
                "requests": len(trace),
                "prompt_tokens": trace.total_tokens,
                "output_tokens": int(trace.num_output_tokens.sum()),
                "blocks": trace.num_lookups,
                "distinct_blocks": trace.num_distinct_blocks,
                "infinite_hit_blocks": hit_blocks,
                "infinite_hit_tokens": hit_tokens,
                "reported_cached_tokens": self._reported(),
            },
            "curves": {
                name: [self._point(point) for point in points] for name, points in self.curves.items()
            },
            "same_as_lru": list(self.same_as_lru),
            "knee": self._size(self.knee_blocks),
            "size_for_share_of_infinite": {
                f"{share:g}": self._size(self.size_for(share)) for share in SHARES
            },
            "reasons": self._reasons(),
            "advice": [
                {
                    "kind": a.kind,
                    "title": a.title,
                    "detail": a.detail,
                    "gain_tokens": a.gain_tokens,
                    "share": a.share,
                }
                for a in self.advice
            ],
            "sharing": sharing(trace, self.touches, self.reasons),
            "breakdown": breakdown(trace, self.reasons),
            "time": time_axis(trace, self.reasons),
            "divergence": divergence_histogram(trace, self.reasons),
            "top_prefixes": {
                by: top_prefixes(trace, self.tree, TOP_PREFIXES, by) for by in ("tokens", "count")
            },
            "page_sizes": page_sizes(trace, self.reasons),
        }

    def _size(self, blocks: int) -> dict[str, int]:
        hit_blocks, hit_tokens = self.curve.at(blocks)
        size = self.trace.block_size
        return {
            "size_blocks": blocks,
            "size_tokens": blocks * size,
            "hit_blocks": hit_blocks,
            "hit_tokens": hit_tokens,
        }

    def _point(self, point: Point) -> dict[str, Any]:
        steady = point.steady_lookup_blocks
        return {
            "size_blocks": point.size_blocks,
            "size_tokens": point.size_tokens,
            "hit_blocks": point.hit_blocks,
            "hit_tokens": point.hit_tokens,
            "share_of_blocks": share(point.hit_blocks, self.trace.num_lookups),
            "share_of_tokens": share(point.hit_tokens, self.trace.total_tokens),
            "steady_hit_blocks": point.steady_hit_blocks,
            "steady_lookup_blocks": steady,
            "steady_share_of_blocks": share(point.steady_hit_blocks, steady) if steady else None,
        }

    def _reasons(self) -> dict[str, Any]:
        reasons, block = self.reasons, self.trace.block_size
        idle = reasons.idle[np.isfinite(reasons.idle)]
        needed = reasons.needed[reasons.needed > reasons.capacity]
        return {
            "policy": reasons.policy,
            "size_blocks": reasons.capacity,
            "size_tokens": reasons.capacity * block,
            "twins_share": self.options.twins_share,
            "of_prompt_tokens": self.trace.total_tokens,
            "hit_tokens_by_policy": self.hit_tokens_at_size,
            "tokens": {reason.value: count for reason, count in reasons.totals().items()},
            "evicted": {
                "requests": int(np.count_nonzero(reasons.evicted_by >= 0)),
                "larger_than_cache": int(
                    np.count_nonzero(reasons.tokens[Reason.EVICTED][reasons.evicted_by < 0])
                ),
                "median_idle_s": float(np.median(idle)) if len(idle) else None,
                "median_size_that_keeps_tokens": int(np.median(needed)) * block if len(needed) else None,
            },
            "diverged": {"requests_with_siblings": int(np.count_nonzero(reasons.siblings))},
        }

    def _reported(self) -> int | None:
        known = self.trace.reported_cached >= 0
        return int(self.trace.reported_cached[known].sum()) if known.any() else None


def share(part: int, whole: int) -> float:
    """A rate; 0 of nothing is 0."""
    return part / whole if whole else 0.0


def knee(curve: LruCurve) -> int:
    """The size in blocks where the curve is furthest above the straight line from its start to its end."""
    best = int(curve.tokens[-1])
    if not best:
        return 0
    line = np.arange(len(curve.tokens)) / curve.largest
    return int(np.argmax(curve.tokens / best - line))


def page_sizes(trace: Trace, reasons: Reasons) -> list[dict[str, int]]:
    """Tokens an infinite cache would share in whole pages of other sizes, as far as the input can tell."""
    if trace.text is not None:
        sizes, shared = [1, 16, 32, 64, 128, 256, 512], reasons.diverged_at
    else:
        sizes = [trace.block_size * factor for factor in (1, 2, 4, 8)]
        shared = trace.seen_lookups() * trace.block_size
    limit = trace.num_tokens
    return [
        {"page_size": size, "hit_tokens": int(np.minimum(limit, shared // size * size).sum())}
        for size in sizes
    ]


def analyse(
    trace: Trace, options: AnalysisOptions | None = None, progress: Listener | None = None
) -> Analysis:
    """Everything about a trace. Other processes help where there is much to replay."""
    options = options or AnalysisOptions()
    progress = progress or Silent()
    chains = build_chains(trace)
    touches = touch(trace, progress)
    curve = lru_curve(trace, touches)
    capacity = _capacity(trace, options, curve)
    sizes = _sizes(trace, curve, options.num_sizes)
    names, same = _policies(trace, options)
    jobs = [(name, size) for name in names for size in dict.fromkeys((*sizes, capacity))]
    with PolicyRuns(Replayable.of(trace, chains), jobs) as runs:
        reasons = find_reasons(trace, touches, chains, options.policy, capacity, options.twins_share)
        found = touches.looked_up(trace)
        hits: dict[Job, Int64Array] = {}
        everywhere = list(dict.fromkeys((*sizes, capacity)))
        hits.update({("lru", size): found.hit_blocks(trace, size) for size in everywhere})
        optimum = optimum_hits(trace, touches, everywhere)
        hits.update({(OPTIMUM, size): best for size, best in zip(everywhere, optimum, strict=True)})
        hits.update(zip(jobs, runs.results(progress), strict=True))
    curves = {
        name: tuple(_point(trace, size, hits[name, size]) for size in sizes)
        for name in ("lru", *names, OPTIMUM)
    }
    at_size = {name: int(trace.hit_tokens(hits[name, capacity]).sum()) for name in ("lru", *names, OPTIMUM)}
    situation = Situation(trace, chains, reasons, curve, at_size)
    advice = tuple(advise(situation)) if options.with_advice else ()
    return Analysis(trace, options, curve, chains, touches, sizes, curves, reasons, advice, at_size, same)


def _policies(trace: Trace, options: AnalysisOptions) -> tuple[list[str], tuple[str, ...]]:
    """Policies to replay, and those that are LRU in this trace: LRU itself is known, priority may be no rank."""
    wanted = list(options.policies if options.policies is not None else POLICIES)
    same = tuple(
        name for name in wanted if name == "priority" and (trace.priority == trace.priority[0]).all()
    )
    return [name for name in wanted if name != "lru" and name not in same], same


def _capacity(trace: Trace, options: AnalysisOptions, curve: LruCurve) -> int:
    tokens = options.size_tokens or trace.server.get("kv_tokens")
    if tokens is None:
        return max(1, knee(curve), int(np.diff(trace.indptr).max()))
    blocks = int(tokens) // trace.block_size
    if blocks < 1:
        raise AnalyzeError(f"a cache of {tokens} tokens is less than one block of {trace.block_size}")
    return blocks


def _sizes(trace: Trace, curve: LruCurve, count: int) -> tuple[int, ...]:
    """Sizes in blocks, in equal steps of ratio, up to the one beyond which LRU gains nothing."""
    high = max(1, curve.largest)
    low = max(1, min(_SMALLEST_SIZES, high // 256))
    return tuple(np.unique(np.geomspace(low, high, count).round().astype(np.int64)).tolist())


def _point(trace: Trace, size: int, hits: Int64Array) -> Point:
    begin = int(np.searchsorted(trace.first_new_block(), size))
    return Point(
        size_blocks=size,
        size_tokens=size * trace.block_size,
        hit_blocks=int(hits.sum()),
        hit_tokens=int(trace.hit_tokens(hits).sum()),
        steady_hit_blocks=int(hits[begin:].sum()),
        steady_lookup_blocks=int(trace.num_lookup_blocks[begin:].sum()),
    )
