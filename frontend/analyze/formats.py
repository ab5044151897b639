"""Readers of traces that name blocks: Mooncake, Bailian, coding-agent sessions, Dynamo request traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .builder import NAN, Record, TraceBuilder
from .lines import BadRecord

MOONCAKE_BLOCK_SIZE = 512
BAILIAN_BLOCK_SIZE = 16
_LATEST_SECONDS = 1e11  # beyond this a number is no time in seconds (the year 5138)


def count(row: Mapping[str, Any], key: str, minimum: int = 0) -> int:
    """The whole number under `key`. Raises BadRecord."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value != int(value):
        raise BadRecord(f"{key} is not a whole number")
    if value < minimum:
        raise BadRecord(f"{key} is below {minimum}")
    return int(value)


def seconds(row: Mapping[str, Any], key: str, unit: float) -> float:
    """The time under `key`, which counts `unit` seconds. Raises BadRecord."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRecord(f"{key} is not a number")
    if not 0 <= value * unit < _LATEST_SECONDS:
        raise BadRecord(f"{key} is not a time")
    return float(value) * unit


def names(row: Mapping[str, Any], key: str) -> NDArray[Any]:
    """The block names under `key` as integers. Raises BadRecord."""
    found = row.get(key)
    if not isinstance(found, list):
        raise BadRecord(f"{key} is not a list")
    if not found:
        return np.zeros(0, np.int64)
    try:
        array = np.array(found)
        if array.dtype.kind == "f" and all(type(name) is int for name in found):
            array = np.array(found, dtype=np.uint64)  # a mixture of small and large 64-bit hashes
    except (OverflowError, ValueError):
        raise BadRecord(f"{key} are not 64-bit integers") from None
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise BadRecord(f"{key} are not 64-bit integers")
    return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)


def fitting(blocks: NDArray[Any], num_tokens: int, block_size: int) -> NDArray[Any]:
    """The blocks, once they are known to be so many as the prompt has (a last partial one may lack)."""
    most = -(-num_tokens // block_size)
    if not num_tokens // block_size <= len(blocks) <= most:
        raise BadRecord(f"the number of blocks of {block_size} tokens does not fit the prompt's length")
    return blocks


def read_mooncake(builder: TraceBuilder, row: Mapping[str, Any], number: int, unit: float) -> None:
    """`timestamp`, `input_length`, `output_length`, `hash_ids`; perhaps `priority`, labels, and what `export` adds."""
    length = count(row, "input_length", 1)
    if row.get("block_size", builder.block_size) != builder.block_size:
        raise BadRecord(f"block_size differs from the first request's {builder.block_size}")
    blocks = fitting(names(row, "hash_ids"), length, builder.block_size)
    builder.outputs_cached |= "output_hash_ids" in row
    builder.add(
        Record(
            id=str(row.get("request_id", row.get("id", number))),
            num_tokens=length,
            num_output_tokens=count(row, "output_length"),
            time=seconds(row, "timestamp", unit) if "timestamp" in row else NAN,
            blocks=np.concatenate([blocks, names(row, "output_hash_ids")])
            if "output_hash_ids" in row
            else blocks,
            num_lookup_blocks=len(blocks),
            reported_cached=count(row, "cached_tokens") if "cached_tokens" in row else -1,
            priority=count(row, "priority", -(2**31)) if "priority" in row else 0,
            labels={
                "namespace": str(row.get("namespace", row.get("cache_salt", ""))),
                "tenant": str(row.get("tenant", row.get("user", ""))),
                "model": str(row.get("model", "")),
                "session": str(row.get("session_id", row.get("session", ""))),
                "call_site": str(row.get("call_site", "")),
            },
        )
    )


class BailianReader:
    """`chat_id`, `parent_chat_id`, `timestamp` (seconds), `type`, `turn`, lengths and `hash_ids` of 16 tokens."""

    def __init__(self) -> None:
        self._session_of: dict[str, str] = {}

    def __call__(self, builder: TraceBuilder, row: Mapping[str, Any], number: int, unit: float) -> None:
        """Add one row; turns are in the session of their first chat."""
        chat, parent = str(row.get("chat_id")), str(row.get("parent_chat_id"))
        session = self._session_of.get(parent, chat)
        self._session_of[chat] = session
        length = count(row, "input_length", 1)
        builder.add(
            Record(
                id=chat,
                num_tokens=length,
                num_output_tokens=count(row, "output_length"),
                time=seconds(row, "timestamp", unit),
                blocks=fitting(names(row, "hash_ids"), length, builder.block_size),
                labels={"session": session, "call_site": str(row.get("type", ""))},
            )
        )


def read_dynamo(builder: TraceBuilder, row: Mapping[str, Any], number: int, unit: float) -> None:
    """`event.request` with lengths, times in ms, cached tokens and `replay.input_sequence_hashes`."""
    event = row.get("event")
    if not isinstance(event, dict):
        raise BadRecord("has no event")
    if event.get("event_type") != "request_end":
        raise BadRecord(f"an event {event.get('event_type')!r}, which is no request")
    request = event.get("request")
    replay = request.get("replay") if isinstance(request, dict) else None
    if not isinstance(request, dict) or not isinstance(replay, dict):
        raise BadRecord("a request without `replay`, the hashes of its blocks")
    if count(replay, "trace_block_size", 1) != builder.block_size:
        raise BadRecord(f"trace_block_size differs from the first request's {builder.block_size}")
    length = count(replay, "input_length", 1)
    arrived = seconds(request, "request_received_ms", 0.001)
    context = event.get("agent_context")
    session = str(context.get("session_id", "")) if isinstance(context, dict) else ""
    builder.add(
        Record(
            id=str(request.get("request_id", number)),
            num_tokens=length,
            num_output_tokens=count(request, "output_tokens"),
            time=arrived,
            first_token_time=arrived + seconds(request, "ttft_ms", 0.001) if "ttft_ms" in request else NAN,
            end_time=arrived + seconds(request, "total_time_ms", 0.001)
            if "total_time_ms" in request
            else NAN,
            blocks=fitting(names(replay, "input_sequence_hashes"), length, builder.block_size),
            reported_cached=count(request, "cached_tokens") if "cached_tokens" in request else -1,
            labels={"model": str(request.get("model", "")), "session": session},
        )
    )


class SessionReader:
    """One coding-agent session a line, sub-agents nested; block ids mean something inside their session only."""

    def __init__(self) -> None:
        self._num_sessions = 0

    def __call__(self, builder: TraceBuilder, row: Mapping[str, Any], number: int, unit: float) -> None:
        """Add the requests of one session, in the order of the file; a bad one is skipped alone."""
        if count(row, "block_size", 1) != builder.block_size:
            raise BadRecord(f"block_size differs from the first session's {builder.block_size}")
        local = row.get("hash_id_scope", "local") == "local"
        offset = self._num_sessions << 32 if local else 0
        self._num_sessions += 1
        name = str(row.get("id", f"session {number}"))
        for path, call_site, entry in _flat(row.get("requests"), name, "main"):
            try:
                builder.add(self._record(entry, path, name, call_site, offset, unit, builder.block_size))
            except BadRecord as error:
                builder.skips.add(str(error), number)

    def _record(
        self,
        entry: Mapping[str, Any],
        path: str,
        session: str,
        call_site: str,
        offset: int,
        unit: float,
        block_size: int,
    ) -> Record:
        blocks = names(entry, "hash_ids")
        if len(blocks) and not 0 <= int(blocks.min()) <= int(blocks.max()) < 2**32:
            raise BadRecord("hash_ids are not session-local numbers")
        start = seconds(entry, "t", unit)
        length = count(entry, "in", 0)
        return Record(
            id=path,
            num_tokens=length,
            num_output_tokens=count(entry, "out"),
            time=start,
            first_token_time=start + seconds(entry, "ttft", unit) if "ttft" in entry else NAN,
            end_time=start + seconds(entry, "api_time", unit) if "api_time" in entry else NAN,
            blocks=fitting(blocks + offset, length, block_size),
            labels={"session": session, "model": str(entry.get("model", "")), "call_site": call_site},
        )


def _flat(entries: Any, path: str, call_site: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The requests of a session, those of sub-agents where they were started; without recursion."""
    stack: list[tuple[str, str, Any]] = [(path, call_site, entries)]
    while stack:
        path, call_site, entry = stack.pop()
        if isinstance(entry, list):
            stack.extend((f"{path}/{i}", call_site, part) for i, part in reversed(list(enumerate(entry))))
        elif isinstance(entry, dict) and entry.get("type") == "subagent":
            stack.append((path, str(entry.get("subagent_type", "subagent")), entry.get("requests")))
        elif isinstance(entry, dict):
            yield path, call_site, entry
        else:
            raise BadRecord("requests of a session must be a list of objects")
