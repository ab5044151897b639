"""A trace as Mooncake-style JSON lines: block numbers instead of text, names replaced if wanted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from .trace import Trace

_LABELS = {"tenant": "t", "namespace": "n", "model": "m", "session": "s", "call_site": "c"}


def exported(trace: Trace, anonymise: bool) -> Iterator[str]:
    """One line for each request, in order; it reads back as the same blocks, lengths, times and labels.

    Blocks are numbered anew in either case and times count from the first request, so neither text nor hashes
    nor dates are left; with `anonymise` ids and labels are numbers as well.
    """
    has_one_clock = trace.has_one_clock
    for request in range(len(trace)):
        path = trace.path(request).tolist()
        lookups = int(trace.num_lookup_blocks[request])
        row: dict[str, Any] = {"request_id": str(request + 1) if anonymise else trace.ids[request]}
        if has_one_clock and math.isfinite(trace.time[request]):
            row["timestamp"] = round(float(trace.time[request]) * 1000, 3)
        row |= {
            "input_length": int(trace.num_tokens[request]),
            "output_length": int(trace.num_output_tokens[request]),
            "block_size": trace.block_size,
            "hash_ids": path[:lookups],
        }
        if len(path) > lookups:
            row["output_hash_ids"] = path[lookups:]
        if trace.priority[request]:
            row["priority"] = int(trace.priority[request])
        if trace.reported_cached[request] >= 0:
            row["cached_tokens"] = int(trace.reported_cached[request])
        for name, letter in _LABELS.items():
            labels = getattr(trace, name)
            if labels.of(request):
                row[name] = f"{letter}{int(labels.codes[request]) + 1}" if anonymise else labels.of(request)
        yield json.dumps(row, ensure_ascii=True, separators=(",", ":"))
