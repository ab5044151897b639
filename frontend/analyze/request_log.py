"""The server's request log: JSON lines from which every hit and miss can be told later, without the text.

The first line of a server's run is its header, every other line one finished choice of one request:

    {"trunkline_request_log": 1, "page_size": 16, "kv_tokens": 65536, "eviction_policy": "lru", "model": "..."}
    {"id": "...", "t": 1764400000.25, "first": 1764400000.31, "end": 1764400001.02, "prompt": 812, "cached": 640,
     "output": 64, "pages": "9f2c...", "namespace": "", "session": "...", ...}

`t`, `first` and `end` are Unix seconds of arrival, first token and end; `pages` are 16 hexadecimal digits for each
whole page of what the request left in the cache (its prompt and all of its answer but the last token), chained, so
that equal digits mean equal tokens from the start on. They are keyed with a salt that is never written, and so tell
nothing about the text. `tokens` are there on request only. `namespace` is keyed too; "" is the default one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trunkline.radix.hashing import DEFAULT_NAMESPACE, Namespace

from .builder import NAN, Record, TraceBuilder
from .formats import count, seconds
from .lines import BadRecord

MAGIC = "trunkline_request_log"
VERSION = 1
DIGEST_BYTES = 8
LABELS = ("model", "session", "tenant", "call_site")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One finished choice of one request. Times are Unix seconds; `first` is None where no token came.

    `prompt` and `output` are int32 token ids; `output` has the tokens that were generated, all of them.
    `labels` may have model, session, tenant and call_site.
    """

    id: str
    t: float
    first: float | None
    end: float
    prompt: NDArray[np.int32]
    output: Sequence[int]
    cached: int
    namespace: Namespace = DEFAULT_NAMESPACE
    priority: int = 0
    preemptions: int = 0
    finish: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class RequestLog:
    """Appends to a log file; a context manager. Cheap: about 2 microseconds for each page of a request.

    `with_tokens` also writes the token ids, which is the text. `salt` keys the hashes; a new one at each start
    unless the hashes of several runs shall be comparable.
    """

    def __init__(
        self,
        path: Path,
        *,
        page_size: int,
        kv_tokens: int,
        eviction_policy: str,
        model: str,
        with_tokens: bool = False,
        salt: bytes | None = None,
    ) -> None:
        self._page_size = page_size
        self._with_tokens = with_tokens
        self._key = blake2b(salt if salt is not None else secrets.token_bytes(32), digest_size=32).digest()
        self._file: IO[str] = path.open("a", encoding="utf-8")
        header = {
            MAGIC: VERSION,
            "page_size": page_size,
            "kv_tokens": kv_tokens,
            "eviction_policy": eviction_policy,
            "model": model,
        }
        self._write(header)

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def write(self, request: LoggedRequest) -> None:
        """Append one line and flush it. Raises OSError as files do."""
        stored = stored_tokens(request.prompt, request.output)
        line: dict[str, Any] = {
            "id": request.id,
            "t": round(request.t, 6),
            "first": None if request.first is None else round(request.first, 6),
            "end": round(request.end, 6),
            "prompt": len(request.prompt),
            "cached": request.cached,
            "output": len(request.output),
            "pages": page_digests(stored, self._page_size, self._key).hex(),
            "namespace": self._namespace(request.namespace),
        }
        optional = {
            "priority": request.priority,
            "preemptions": request.preemptions,
            "finish": request.finish,
            **{name: request.labels.get(name, "") for name in LABELS},
        }
        line.update({name: value for name, value in optional.items() if value})
        if self._with_tokens:
            line["tokens"] = stored.tolist()
        self._write(line)

    def _namespace(self, namespace: Namespace) -> str:
        if namespace == DEFAULT_NAMESPACE:
            return ""
        kind, value = namespace
        return f"{kind}:{blake2b(value.encode(), key=self._key, digest_size=DIGEST_BYTES).hexdigest()}"

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()


def stored_tokens(prompt: NDArray[np.int32], output: Sequence[int]) -> NDArray[np.int32]:
    """What a finished request leaves in the cache: the last token of an answer was never computed."""
    return np.concatenate([prompt, np.array(output[:-1], dtype=np.int32)])


def page_digests(tokens: NDArray[np.int32], page_size: int, key: bytes) -> bytes:
    """Chained keyed digests of the whole pages of a sequence, DIGEST_BYTES each. O(pages)."""
    data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    width = 4 * page_size
    digest, digests = b"", []
    for end in range(width, len(data) + 1, width):
        digest = blake2b(digest + data[end - width : end], key=key, digest_size=DIGEST_BYTES).digest()
        digests.append(digest)
    return b"".join(digests)


class RequestLogReader:
    """Reads lines of one or more runs of a server; each run starts with an empty cache."""

    def __init__(self) -> None:
        self._run = 0

    def __call__(self, builder: TraceBuilder, row: Mapping[str, Any], number: int, unit: float) -> None:
        """Add one line; a header starts a new run. Raises BadRecord."""
        if MAGIC in row:
            self._begin(builder, row)
            return
        prompt = count(row, "prompt", 1)
        output = count(row, "output")
        total = prompt + max(0, output - 1)
        pages = _pages(row, total, builder.block_size)
        start = seconds(row, "t", unit)
        namespace = str(row.get("namespace", ""))
        labels = {name: str(row.get(name, "")) for name in LABELS}
        tokens = _tokens(row, total)
        if len(builder) and (tokens is None) == builder.has_tokens:
            raise BadRecord("only some of the lines have tokens; a log has them in all lines or in none")
        builder.add(
            Record(
                id=str(row.get("id", number)),
                num_tokens=prompt,
                num_output_tokens=output,
                time=start,
                first_token_time=seconds(row, "first", unit) if row.get("first") is not None else NAN,
                end_time=seconds(row, "end", unit) if row.get("end") is not None else NAN,
                blocks=pages,
                num_lookup_blocks=prompt // builder.block_size,
                tokens=tokens,
                reported_cached=count(row, "cached") if "cached" in row else -1,
                priority=count(row, "priority", -(2**31)) if "priority" in row else 0,
                labels=labels | {"namespace": f"{namespace}@{self._run}" if self._run > 1 else namespace},
            )
        )

    def _begin(self, builder: TraceBuilder, header: Mapping[str, Any]) -> None:
        if header.get(MAGIC) != VERSION:
            raise BadRecord(f"a request log of version {header.get(MAGIC)!r}; this reads {VERSION}")
        if count(header, "page_size", 1) != builder.block_size:
            raise BadRecord(f"page_size differs from the first run's {builder.block_size}")
        self._run += 1
        if self._run > 1:
            builder.notes.append(f"the server was started again (run {self._run}): its cache was empty then")
        known = ("page_size", "kv_tokens", "eviction_policy", "model")
        builder.server = {name: header[name] for name in known if name in header}


def _pages(row: Mapping[str, Any], total: int, page_size: int) -> NDArray[np.int64]:
    digits = row.get("pages")
    try:
        found = np.frombuffer(bytes.fromhex(digits), dtype=">u8") if isinstance(digits, str) else None
    except ValueError:
        found = None
    if found is None or len(found) != total // page_size:
        raise BadRecord("pages are not 16 hexadecimal digits for each whole page")
    return found.astype(np.uint64).view(np.int64)


def _tokens(row: Mapping[str, Any], total: int) -> NDArray[np.int32] | None:
    if "tokens" not in row:
        return None
    tokens = row["tokens"]
    if not isinstance(tokens, list) or len(tokens) != total:
        raise BadRecord(f"tokens are not the {total} tokens of prompt and answer")
    try:
        return np.array(tokens, dtype=np.int32)
    except (OverflowError, TypeError, ValueError):
        raise BadRecord("tokens are not 32-bit integers") from None
