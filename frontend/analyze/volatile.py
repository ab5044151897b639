"""Fragments near the start of prompts that differ from one to the next while what follows is the same again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .builder import number_pages
from .canonical import number_blocks
from .reasons import Reasons
from .touches import touch
from .trace import TokenText, Trace
from .types import Int32Array, Int64Array

_WINDOW = 160  # tokens behind a divergence in which the texts must meet again
_ANCHOR = 12  # equal tokens that count as meeting
_MIN_LOST = 32  # tokens that must follow in both
_MAX_EXAMINED = 2000
_MAX_LINES = 256
_MAX_EXTENTS = 4

Rewrite = Callable[[int, Int32Array], Int32Array]  # request, prompt -> the same tokens in another order

# The first kind that matches names a fragment; a match is what has to move.
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "timestamp",
        re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"),
    ),
    ("timestamp", re.compile(r"\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?")),
    ("timestamp", re.compile(r"\b1[5-9]\d{8}(?:\d{3}){0,3}(?:\.\d+)?\b")),
    ("id", re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")),
    ("id", re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{6,}\b")),
    ("number", re.compile(r"\b\d[\d.,]*\b")),
)


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """A kind of fragment behind one beginning, in the requests in which it was found.

    `examples` are fragments as text; `position` the median token at which they begin; `lost_tokens` what was
    equal again behind them and could not be shared. `moved` is the trace with the fragments at the end of
    their prompts (lists: in one order).
    """

    kind: str
    position: int
    num_requests: int
    lost_tokens: int
    examples: tuple[str, ...]
    moved: Trace


def find_fragments(trace: Trace, reasons: Reasons) -> list[Fragment]:
    """What keeps prompts from sharing, the largest loss first; needs text.

    Each prompt is aligned with the one it diverged from; where both meet again soon, what lies between is
    named by its looks. O(examined requests * window).
    """
    if trace.text is None:
        return []
    found: dict[str, list[_Divergence]] = {}
    behind = np.flatnonzero((reasons.diverged_at < trace.num_tokens - _MIN_LOST) & (reasons.sibling >= 0))
    for request in behind[:_MAX_EXAMINED].tolist():
        divergence = _examine(trace, trace.text, request, reasons)
        if divergence is not None:
            found.setdefault(divergence.kind, []).append(divergence)
    fragments = [_fragment(trace, trace.text, kind, members) for kind, members in found.items()]
    return sorted(fragments, key=lambda fragment: -fragment.lost_tokens)


@dataclass(frozen=True, slots=True)
class _Divergence:
    kind: str
    start: int  # the fragment's tokens (or the list's) in the request's prompt
    end: int
    lost: int
    example: str
    request: int
    sibling: int
    sibling_end: int


def _examine(trace: Trace, text: TokenText, request: int, reasons: Reasons) -> _Divergence | None:
    at = int(reasons.diverged_at[request])
    mine = text.of(request)[: trace.num_tokens[request]]
    sibling = int(reasons.sibling[request])
    other = text.of(sibling)[: trace.num_tokens[sibling]]
    shuffled = _shuffled(text, mine, other, at)
    if shuffled is not None:
        start, end = shuffled
        lost = end - at + _common(mine[end:], other[end:])
        example = _decoded(text, mine[start : start + 24])
        return _Divergence("list order", start, end, lost, example, request, sibling, end)
    met = _meet(mine[at : at + _WINDOW + _ANCHOR], other[at : at + _WINDOW + _ANCHOR])
    if met is None:
        return None
    lost = _common(mine[at + met[0] :], other[at + met[1] :])
    if lost < _MIN_LOST:
        return None
    span = _pattern_span(text, mine, at, at + met[0])
    kind, start, end = ("text", at, at + met[0]) if span is None else span
    return _Divergence(kind, start, end, lost, _decoded(text, mine[start:end]), request, sibling, at + met[1])


def _meet(mine: Int32Array, other: Int32Array) -> tuple[int, int] | None:
    """The nearest pair of offsets from which both go on with the same _ANCHOR tokens."""
    if len(mine) < _ANCHOR or len(other) < _ANCHOR:
        return None
    width = np.dtype((np.void, 4 * _ANCHOR))
    windows = [
        np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(part, _ANCHOR)).view(width).ravel()
        for part in (mine, other)
    ]
    places: dict[Any, int] = {}
    for place, window in enumerate(windows[1].tolist()):
        places.setdefault(window, place)
    pairs = [(place, places[window]) for place, window in enumerate(windows[0].tolist()) if window in places]
    return min(pairs, key=sum, default=None)


def _common(mine: Int32Array, other: Int32Array) -> int:
    length = min(len(mine), len(other))
    differs = np.flatnonzero(mine[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def _pattern_span(text: TokenText, tokens: Int32Array, start: int, end: int) -> tuple[str, int, int] | None:
    """The tokens of the first pattern that overlaps `start` .. `end`, looked for a little around it."""
    low, high = max(0, start - 24), min(len(tokens), end + 24)
    pieces = [_decoded(text, tokens[index : index + 1]) for index in range(low, high)]
    ends = np.cumsum([len(piece) for piece in pieces])
    begins = ends - [len(piece) for piece in pieces]
    whole = "".join(pieces)
    first, last = int(begins[start - low]), int(ends[max(end, start + 1) - low - 1])
    for kind, pattern in KINDS:
        for match in pattern.finditer(whole):
            if match.start() < last and match.end() > first:
                left = int(np.searchsorted(ends, match.start(), side="right"))
                right = int(np.searchsorted(begins, match.end(), side="left"))
                return kind, low + left, low + right
    return None


def _lines(text: TokenText, tokens: Int32Array, start: int) -> list[tuple[int, ...]]:
    """Lines from token `start` on, each as its tokens."""
    lines: list[tuple[int, ...]] = []
    line: list[int] = []
    for token in tokens[start : start + 8192].tolist():
        line.append(token)
        if _decoded(text, [token]).endswith("\n"):
            lines.append(tuple(line))
            line = []
            if len(lines) == _MAX_LINES:
                break
    return lines


def _line_start(text: TokenText, tokens: Int32Array, at: int) -> int:
    """The first token of the line with token `at`."""
    while at and not _decoded(text, tokens[at - 1 : at]).endswith("\n"):
        at -= 1
    return at


def _shuffled(text: TokenText, mine: Int32Array, other: Int32Array, at: int) -> tuple[int, int] | None:
    """The tokens of `mine` whose lines are those of `other` in another order, around token `at`."""
    start = _line_start(text, mine, min(at, len(mine) - 1))
    left: Counter[tuple[int, ...]] = Counter()
    open_lines = 0
    end = start
    for a, b in zip(_lines(text, mine, start), _lines(text, other, start), strict=False):
        for line, sign in ((a, 1), (b, -1)):
            before = left[line]
            left[line] += sign
            open_lines += abs(left[line]) - abs(before)
        end += len(a)
        if not open_lines:
            return start, end
    return None


def _fragment(trace: Trace, text: TokenText, kind: str, members: list[_Divergence]) -> Fragment:
    positions = sorted(member.start for member in members)
    rewrite: Rewrite
    if kind == "list order":
        rewrite = _Sorter(text, members)
    elif kind == "text":
        rewrite = _SpanMover(members)
    else:
        rewrite = _PatternMover(text, kind, positions[0], positions[-1] + _WINDOW)
    return Fragment(
        kind=kind,
        position=positions[len(positions) // 2],
        num_requests=len(members) + 1,
        lost_tokens=sum(member.lost for member in members),
        examples=tuple(dict.fromkeys(member.example.strip() for member in members))[:3],
        moved=rewritten(trace, text, rewrite),
    )


class _SpanMover:
    """Puts fragments without a pattern behind the rest of the prompts in which they were seen."""

    def __init__(self, members: list[_Divergence]) -> None:
        self._spans: dict[int, tuple[int, int]] = {}
        for member in members:
            self._spans[member.request] = member.start, member.end
            self._spans.setdefault(member.sibling, (member.start, member.sibling_end))

    def __call__(self, request: int, prompt: Int32Array) -> Int32Array:
        start, end = self._spans.get(request, (0, 0))
        return np.concatenate([prompt[:start], prompt[end:], prompt[start:end]])


class _PatternMover:
    """Puts the fragments of a kind, in the stretch where they were found, behind the rest of the prompt."""

    def __init__(self, text: TokenText, kind: str, low: int, high: int) -> None:
        self._text = text
        self._patterns = [pattern for name, pattern in KINDS if name == kind]
        self._low, self._high = max(0, low - 24), high

    def __call__(self, request: int, prompt: Int32Array) -> Int32Array:
        pieces = [_decoded(self._text, [token]) for token in prompt[self._low : self._high].tolist()]
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        ends = np.cumsum(lengths)
        whole = "".join(pieces)
        spans = [match.span() for pattern in self._patterns for match in pattern.finditer(whole)]
        if not spans:
            return prompt
        moving = np.zeros(len(prompt), dtype=bool)
        for start, end in spans:
            left = self._low + int(np.searchsorted(ends, start, side="right"))
            right = self._low + int(np.searchsorted(ends - lengths, end, side="left"))
            moving[left:right] = True
        return np.concatenate([prompt[~moving], prompt[moving]])


class _Sorter:
    """Puts the lines of a list into one order, in every prompt that has it at the same place."""

    def __init__(self, text: TokenText, members: list[_Divergence]) -> None:
        self._text = text
        self._extents = Counter((member.start, member.end) for member in members)

    def __call__(self, request: int, prompt: Int32Array) -> Int32Array:
        for (start, end), _ in self._extents.most_common(_MAX_EXTENTS):
            lines = _lines(self._text, prompt[:end], start)
            if len(lines) > 1 and sum(map(len, lines)) == end - start:
                ordered = [token for line in sorted(lines) for token in line]
                return np.concatenate([prompt[:start], np.array(ordered, dtype=np.int32), prompt[end:]])
        return prompt


def rewritten(trace: Trace, text: TokenText, rewrite: Rewrite) -> Trace:
    """The trace as it would be with other prompts of the same lengths; answers stay behind them."""
    tokens = text.tokens.copy()
    for request, (start, length) in enumerate(
        zip(text.indptr[:-1].tolist(), trace.num_tokens.tolist(), strict=True)
    ):
        tokens[start : start + length] = rewrite(request, text.of(request)[:length])
    roots = trace.namespace.codes
    numbers, names, indptr = number_pages(tokens, text.indptr, roots, trace.block_size)
    blocks, count = number_blocks(names, indptr, roots)
    return replace(
        trace,
        blocks=blocks,
        indptr=indptr,
        num_distinct_blocks=count,
        content_of_block=None,
        text=replace(text, tokens=tokens, numbers=numbers),
    )


def lru_hit_tokens(trace: Trace, capacity: int) -> Int64Array:
    """Hit tokens of each request in an LRU cache of `capacity` blocks."""
    return trace.hit_tokens(touch(trace).looked_up(trace).hit_blocks(trace, capacity))


def _decoded(text: TokenText, tokens: object) -> str:
    return str(text.decode(tokens, skip_special=False))
