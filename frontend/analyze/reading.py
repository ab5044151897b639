"""From any input to a trace: what it is, is decided by what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .builder import TraceBuilder
from .errors import InputError
from .formats import (
    BAILIAN_BLOCK_SIZE,
    MOONCAKE_BLOCK_SIZE,
    BailianReader,
    SessionReader,
    count,
    read_dynamo,
    read_mooncake,
)
from .lines import BadRecord, Source
from .progress import Listener, Silent
from .request_log import MAGIC, RequestLogReader
from .trace import Trace

Row = Mapping[str, Any]
Reader = Callable[[TraceBuilder, Row, int, float], None]

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_LENGTH_COLUMNS = ("ContextTokens", "input_tokens", "num_prefill_tokens", "prompt_tokens", "Request tokens")
_PROBE_LINES = 20
_BUSIEST_TOKENS_PER_SECOND = 5e6
_QUIETEST_SECONDS_PER_REQUEST = 86_400.0
_REPORT_EVERY = 256


@dataclass(frozen=True, slots=True)
class InputOptions:
    """What a reader can't know from the input itself.

    tokenizer: model folder, .gguf file or hub id whose tokenizer and chat template turn text into tokens; the
    embedded model's if None. page_size: tokens in a block of inputs with text. block_size: of hash traces whose
    format has no fixed one. time_unit: s, ms, us or ns where the format's usual unit isn't the right one.
    """

    tokenizer: str | None = None
    page_size: int = 16
    block_size: int | None = None
    time_unit: str | None = None

    def __post_init__(self) -> None:
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            raise InputError(f"time unit {self.time_unit!r} is not one of {', '.join(TIME_UNITS)}")
        for name in ("page_size", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A format: its name, its reader, tokens in a block, the usual unit of time, whether there is one clock."""

    name: str
    read: Reader
    block_size: int
    unit: float
    has_one_clock: bool = True
    tokenizer: Any = None


def read_trace(
    path: str | Path, options: InputOptions | None = None, progress: Listener | None = None
) -> Trace:
    """Read an input (a path, or `-` for stdin). Raises InputError when nothing in it can be used.

    Understands Mooncake and Bailian traces, coding-agent sessions, Dynamo request traces, the request log of
    `trunkline serve`, and text: OpenAI requests with or without responses, recorded conversations, ShareGPT,
    plain prompts; as JSON lines or one JSON array, gzipped or not. Single bad lines are left out and counted.
    """
    options = options or InputOptions()
    source = Source(path)
    rows = _rows(source)
    probe = list(islice(rows, _PROBE_LINES))
    if not probe:
        raise _nothing(source)
    kind = _kind(source, probe, options)
    builder = TraceBuilder(source.name, kind.name, kind.block_size, source.skips)
    builder.has_one_clock = kind.has_one_clock
    unit = TIME_UNITS[options.time_unit] if options.time_unit is not None else kind.unit
    hear = (progress or Silent()).stage(f"reading {source.name}", None)
    for number, row in chain(probe, rows):
        try:
            kind.read(builder, row, number, unit)
        except BadRecord as error:
            source.skips.add(str(error), number)
        if number % _REPORT_EVERY == 0:
            hear(number)
    if not kind.has_one_clock:
        builder.notes.append("each session has a clock of its own; requests are taken in the file's order")
    tokenizer = kind.tokenizer
    trace = builder.build(
        getattr(tokenizer, "name", options.tokenizer or "the embedded model's") if tokenizer else "",
        tokenizer.decode if tokenizer else None,
    )
    return _doubted(trace)


def _rows(source: Source) -> Iterator[tuple[int, Row]]:
    """The objects of JSON lines, or of one JSON array."""
    lines = source.lines()
    first = next(lines, None)
    if first is None:
        return
    if first[1].lstrip().startswith(b"["):
        yield from _array(source, b"".join(chain([first[1]], (line for _, line in lines))))
        return
    _refuse_lengths(source, first)
    decode = msgspec.json.Decoder().decode
    for number, line in chain([first], lines):
        try:
            row = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            source.skips.add("is not JSON", number)
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            source.skips.add("is not a JSON object", number)


def _array(source: Source, text: bytes) -> Iterator[tuple[int, Row]]:
    try:
        rows = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source.name}: is neither JSON lines nor a whole JSON array: {error}") from error
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield number, row
        else:
            source.skips.add("is not a JSON object", number)


def _refuse_lengths(source: Source, first: tuple[int, bytes]) -> None:
    """A table of lengths says nothing about what prompts share, so there is nothing to analyse."""
    text = first[1].decode("utf-8", "replace").strip()
    cells = [cell.strip().strip('"') for cell in text.split(",")]
    if text.startswith("{") or len(cells) < 2:
        return
    if any(column in cells for column in _LENGTH_COLUMNS):
        raise InputError(
            f"{source.name}: line {first[0]} is the header of a CSV of lengths ({text[:60]}). Lengths do not tell"
            " which prompts begin alike, so no hit can be computed; `trunkline simulate` takes such files"
        )
    if not any(character in text for character in '{}"'):
        raise InputError(f"{source.name}: line {first[0]} is a CSV, not JSON: {text[:60]!r}")


def _kind(source: Source, probe: list[tuple[int, Row]], options: InputOptions) -> _Kind:
    for _, row in probe:
        found = _kind_of(row, options)
        if found is not None:
            return found
    number, row = probe[0]
    keys = ", ".join(sorted(map(str, row)))[:120]
    raise InputError(f"{source.name}, line {number}: no known kind of record; its keys are {keys}")


def _kind_of(row: Row, options: InputOptions) -> _Kind | None:
    try:
        if MAGIC in row:
            return _Kind("trunkline request log", RequestLogReader(), count(row, "page_size", 1), 1.0)
        if "hash_ids" in row and "parent_chat_id" in row:
            return _Kind("Bailian", BailianReader(), options.block_size or BAILIAN_BLOCK_SIZE, 1.0)
        if "hash_ids" in row and "input_length" in row:
            return _Kind("Mooncake", read_mooncake, _block_size(row, options, MOONCAKE_BLOCK_SIZE), 1e-3)
        if "requests" in row and "block_size" in row:
            return _Kind("agent sessions", SessionReader(), count(row, "block_size", 1), 1.0, False)
        replay = _replay(row)
        if replay is not None:
            return _Kind("Dynamo request trace", read_dynamo, count(replay, "trace_block_size", 1), 1e-3)
    except BadRecord:
        return None
    return _text_kind(row, options)


def _block_size(row: Row, options: InputOptions, usual: int) -> int:
    if options.block_size is not None:
        return options.block_size
    return count(row, "block_size", 1) if "block_size" in row else usual


def _text_kind(row: Row, options: InputOptions) -> _Kind | None:
    from .text_formats import TextReader, is_text

    if not is_text(row):
        return None
    from trunkline.runtime.loading import load_tokenizer

    tokenizer = load_tokenizer(options.tokenizer)
    return _Kind("text", TextReader(tokenizer), options.page_size, 1.0, tokenizer=tokenizer)


def _replay(row: Row) -> Row | None:
    event = row.get("event")
    request = event.get("request") if isinstance(event, dict) else None
    replay = request.get("replay") if isinstance(request, dict) else None
    return replay if isinstance(replay, dict) else None


def _nothing(source: Source) -> InputError:
    skips = source.skips.describe()
    if not skips:
        return InputError(f"{source.name}: has no lines")
    return InputError(
        f"{source.name}, line {skips[0]['first_line']}: {skips[0]['reason']}; nothing else is there"
    )


def _doubted(trace: Trace) -> Trace:
    """The same trace, with a note when its times can hardly be in the unit they were read in."""
    known = trace.time[np.isfinite(trace.time)]
    if len(known) < 100 or not trace.has_one_clock:
        return trace
    span = float(known.max() - known.min())
    rate = trace.total_tokens / span if span else float("inf")
    if span and rate <= _BUSIEST_TOKENS_PER_SECOND and span / len(known) <= _QUIETEST_SECONDS_PER_REQUEST:
        return trace
    note = f"doubtful times: {len(known):,} requests in {span:,.1f} s; if that is the wrong unit, say --time-unit"
    return replace(trace, notes=(*trace.notes, note))
