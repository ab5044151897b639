"""Readers of request traces: which file it is is decided by what it says, not by its name."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trunkline.errors import TrunklineError
from trunkline.scheduler.workload import (
    Int64Array,
    SimulatedRequest,
    TokenIds,
    Workload,
    from_lengths,
    poisson_arrivals,
)

MOONCAKE_BLOCK_SIZE = 512


class TraceError(TrunklineError, ValueError):
    """A trace that can't be read; names the file, the line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a file that aren't blank, each with its number, and an error that knows where it is."""

    path: Path

    def __iter__(self) -> Iterator[tuple[int, str]]:
        try:
            with self.path.open("rb") as file:
                opener = gzip.open if file.read(2) == b"\x1f\x8b" else open
            with opener(self.path, "rt", encoding="utf-8-sig") as text:
                for number, line in enumerate(text, start=1):
                    if line.strip():
                        yield number, line
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise TraceError(f"{self.path}: cannot be read: {error}") from error

    def error(self, number: int, text: str) -> TraceError:
        return TraceError(f"{self.path}, line {number}: {text}")


def read_trace(path: Path, rate: float | None = None, seed: int = 0) -> Workload:
    """The workload in a trace file, gzipped or not.

    Understands Mooncake (JSON lines, 512-token blocks), coding-agent sessions (JSON lines, one session
    each), and CSV files of lengths: `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure),
    `arrival_s,input_tokens,output_tokens`, and `num_prefill_tokens,num_decode_tokens,...` (no times: they
    need `rate`).

    Args:
        rate: replaces the recorded arrivals by a Poisson process of so many requests (sessions) a second.

    Raises:
        TraceError: names the file, the line and what is wrong with it.
    """
    lines = _Lines(path)
    first = next(iter(lines), None)
    if first is None:
        raise TraceError(f"{path}: has no lines")
    if first[1].lstrip().startswith("{"):
        head = _object(lines, *first)
        if "hash_ids" in head and "timestamp" in head:
            workload = _read_mooncake(lines)
        elif "requests" in head and "block_size" in head:
            return _read_sessions(lines, rate, seed)
        else:
            raise lines.error(first[0], f"unknown kind of JSON lines; its keys are {', '.join(sorted(head))}")
    else:
        workload = _read_csv(lines, first, rate)
    return _with_arrivals(workload, rate, seed)


def _with_arrivals(workload: Workload, rate: float | None, seed: int) -> Workload:
    """Recorded arrivals from zero on, in order; or Poisson arrivals in the file's order."""
    requests = workload.requests
    if rate is not None:
        times = poisson_arrivals(len(requests), rate, seed)
        note = f"arrivals: Poisson, {rate:g} a second, seed {seed}"
    else:
        first = min(request.arrival_time for request in requests)
        times = [request.arrival_time - first for request in requests]
        note = "arrivals: as recorded"
    timed = (replace(request, arrival_time=time) for request, time in zip(requests, times, strict=True))
    ordered = tuple(sorted(timed, key=lambda request: request.arrival_time))
    return replace(workload, requests=ordered, notes=(*workload.notes, note))


def _object(lines: _Lines, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise lines.error(number, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise lines.error(number, f"is not a JSON object but {type(found).__name__}")
    return found


def _number(lines: _Lines, number: int, row: Mapping[str, Any], key: str, minimum: float) -> float:
    """The number under `key`, at least `minimum`; CSV cells count as numbers if they read as one."""
    found = row.get(key)
    try:
        value = (
            float(found)
            if isinstance(found, int | float | str) and not isinstance(found, bool)
            else float("nan")
        )
    except ValueError:
        value = float("nan")
    if not minimum <= value < float("inf"):
        raise lines.error(number, f"{key} must be a number of at least {minimum:g}, got {found!r}")
    return value


def _count(lines: _Lines, number: int, row: Mapping[str, Any], key: str, minimum: int) -> int:
    """The whole number under `key`, at least `minimum`."""
    value = _number(lines, number, row, key, minimum)
    if value != int(value):
        raise lines.error(number, f"{key} must be a whole number, got {row.get(key)!r}")
    return int(value)


class _Blocks:
    """Token ids of content blocks: each new block id gets `block_size` ids of its own."""

    def __init__(self, ids: TokenIds, block_size: int) -> None:
        self._ids = ids
        self._block_size = block_size
        self._starts: dict[int, int] = {}

    def ranges(self, lines: _Lines, number: int, hash_ids: Any, length: int) -> tuple[Int64Array, Int64Array]:
        """The first `length` tokens of the blocks as ranges; a rest behind them is new text."""
        if not isinstance(hash_ids, list) or not all(type(block) is int for block in hash_ids):
            raise lines.error(number, "hash_ids must be a list of integers")
        size = self._block_size
        rest = length - size * len(hash_ids)
        if not -size < rest < size:
            raise lines.error(
                number, f"{len(hash_ids)} blocks of {size} tokens do not fit a prompt of {length}"
            )
        starts = self._starts
        for block in hash_ids:
            if block not in starts:
                starts[block] = self._ids.take(size)
        first = np.array([starts[block] for block in hash_ids], np.int64)
        breaks = np.flatnonzero(np.diff(first) != size) + 1
        heads = np.concatenate(([0], breaks)).astype(np.int64) if len(first) else np.zeros(0, np.int64)
        lengths = np.diff(np.append(heads, len(first))) * size
        range_starts = first[heads]
        if rest > 0:
            return np.append(range_starts, self._ids.take(rest)), np.append(lengths, rest)
        lengths[-1] += rest
        return range_starts, lengths


def _read_mooncake(lines: _Lines) -> Workload:
    ids = TokenIds()
    blocks = _Blocks(ids, MOONCAKE_BLOCK_SIZE)
    requests = []
    for number, line in lines:
        row = _object(lines, number, line)
        arrival = _number(lines, number, row, "timestamp", 0) / 1000
        length = _count(lines, number, row, "input_length", 1)
        output = _count(lines, number, row, "output_length", 1)
        starts, lengths = blocks.ranges(lines, number, row.get("hash_ids"), length)
        requests.append(SimulatedRequest(str(number), arrival, starts, lengths, output, 0))
    return Workload(lines.path.name, _with_outputs(requests, ids), MOONCAKE_BLOCK_SIZE)


def _with_outputs(requests: Iterable[SimulatedRequest], ids: TokenIds) -> tuple[SimulatedRequest, ...]:
    """Answers get ids behind all prompts' ones, so that blocks which follow each other stay neighbours."""
    return tuple(replace(request, output_start=ids.take(request.max_new_tokens)) for request in requests)


def _read_sessions(lines: _Lines, rate: float | None, seed: int) -> Workload:
    """Coding-agent sessions: each request follows the one before it in its session after its think time."""
    ids = TokenIds()
    requests: list[SimulatedRequest] = []
    skipped = sessions = block_size = 0
    for number, line in lines:
        row = _object(lines, number, line)
        block_size = _count(lines, number, row, "block_size", 1)
        chain = _Session(lines, number, str(row.get("id", f"session {number}")), _Blocks(ids, block_size))
        chain.read(row.get("requests"), chain.name, None)
        requests.extend(chain.found)
        skipped += chain.skipped
        sessions += 1
    starts = poisson_arrivals(sessions, rate, seed) if rate is not None else [0.0] * sessions
    times = iter(starts)
    timed = [
        replace(request, arrival_time=next(times)) if request.after is None else request
        for request in requests
    ]
    began = f"Poisson, {rate:g} a second, seed {seed}" if rate is not None else "all at second 0"
    notes = (
        f"{sessions} sessions start {began}; each later request arrives its think time after the last answer",
        "blocks are shared inside a session only; answers are not known to be part of the next prompt",
        *((f"{skipped} requests without a prompt left out",) if skipped else ()),
    )
    return Workload(lines.path.name, _with_outputs(timed, ids), block_size, notes)


class _Session:
    """Walks one session's requests and those of its sub-agents."""

    def __init__(self, lines: _Lines, number: int, name: str, blocks: _Blocks) -> None:
        self.name = name
        self.found: list[SimulatedRequest] = []
        self.skipped = 0
        self._lines = lines
        self._number = number
        self._blocks = blocks

    def read(self, entries: Any, name: str, after: str | None, delay: float = 0.0) -> None:
        """Add the chain of requests `entries`, the first one `delay` seconds after `after` ended."""
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self._lines.error(self._number, f"requests of {name} must be a list of objects")
        end = 0.0
        for index, entry in enumerate(entries):
            start = _number(self._lines, self._number, entry, "t", 0)
            here = f"{name}/{index}"
            wait = max(0.0, start - end) if index else delay
            if entry.get("type") == "subagent":
                self.read(entry.get("requests"), here, after, wait)
                continue
            length = _count(self._lines, self._number, entry, "in", 0)
            if length == 0:
                self.skipped += 1
                continue
            starts, lengths = self._blocks.ranges(self._lines, self._number, entry.get("hash_ids"), length)
            output = max(1, _count(self._lines, self._number, entry, "out", 0))
            if index and "think_time" in entry:
                wait = _number(self._lines, self._number, entry, "think_time", 0)
            self.found.append(SimulatedRequest(here, wait, starts, lengths, output, 0, after))
            end = start + _number(self._lines, self._number, {"api_time": 0.0} | entry, "api_time", 0)
            after = here


def _read_csv(lines: _Lines, first: tuple[int, str], rate: float | None) -> Workload:
    header = [cell.strip() for cell in first[1].split(",")]
    kind = next(
        (kind for kind in _CSV_KINDS if {kind.prompt, kind.output, kind.time or kind.prompt} <= set(header)),
        None,
    )
    if kind is None:
        raise lines.error(
            first[0], f"neither JSON lines nor a CSV header that is known: {first[1].strip()[:80]!r}"
        )
    if kind.time is None and rate is None:
        raise TraceError(
            f"{lines.path}: has lengths but no arrival times; say how many requests arrive a second (--rate)"
        )
    lengths, arrivals = [], []
    for number, line in islice(lines, 1, None):
        cells = next(csv.reader([line]))
        if len(cells) != len(header):
            raise lines.error(number, f"has {len(cells)} cells where the header has {len(header)}")
        row = dict(zip(header, cells, strict=True))
        prompt = _count(lines, number, row, kind.prompt, 1)
        lengths.append((prompt, _count(lines, number, row, kind.output, 1)))
        arrivals.append(kind.read_time(lines, number, row))
    if not lengths:
        raise TraceError(f"{lines.path}: has a header but no rows")
    notes = ("lengths only: no request shares a prefix with another",)
    return from_lengths(lines.path.name, lengths, arrivals, notes)


@dataclass(frozen=True, slots=True)
class _CsvKind:
    """The columns of one kind of CSV file; a time is seconds, or a date in Azure's traces."""

    time: str | None
    prompt: str
    output: str

    def read_time(self, lines: _Lines, number: int, row: Mapping[str, str]) -> float:
        if self.time is None:
            return 0.0
        if self.time != "TIMESTAMP":
            return _number(lines, number, row, self.time, 0)
        try:
            return (datetime.fromisoformat(row[self.time].strip()) - datetime(2000, 1, 1)).total_seconds()
        except (ValueError, TypeError) as error:
            raise lines.error(number, f"TIMESTAMP is not a date and time: {row[self.time]!r}") from error


_CSV_KINDS = (
    _CsvKind("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _CsvKind("arrival_s", "input_tokens", "output_tokens"),
    _CsvKind(None, "num_prefill_tokens", "num_decode_tokens"),
)
