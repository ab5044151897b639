"""Small traces to analyse, made by hand or at random."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trunkline.frontend.analyze.builder import Record, TraceBuilder
from trunkline.frontend.analyze.lines import Skips
from trunkline.frontend.analyze.trace import Trace


def block_trace(
    paths: Sequence[Sequence[int]],
    block_size: int = 4,
    lookups: Sequence[int] | None = None,
    priorities: Sequence[int] | None = None,
    namespaces: Sequence[str] | None = None,
    **columns: Sequence[Any],
) -> Trace:
    """Requests by their block names; a second apart, their last blocks full."""
    builder = TraceBuilder("made", "test", block_size, Skips())
    builder.outputs_cached = lookups is not None
    for number, path in enumerate(paths):
        count = lookups[number] if lookups is not None else len(path)
        builder.add(
            Record(
                **{"id": str(number), "num_tokens": max(1, count * block_size), "time": float(number)}
                | {name: values[number] for name, values in columns.items()},
                blocks=np.array(path, dtype=np.int64),
                num_lookup_blocks=count,
                priority=priorities[number] if priorities is not None else 0,
                labels={"namespace": namespaces[number] if namespaces is not None else ""},
            )
        )
    return builder.build()


def random_paths(seed: int, num_requests: int = 60, reuse: float = 0.7) -> list[list[int]]:
    """Paths that branch, continue and repeat; block names are chained (a name tells its whole path)."""
    rng = np.random.default_rng(seed)
    paths: list[list[int]] = []
    fresh = 0
    for _ in range(num_requests):
        path: list[int] = []
        if paths and rng.random() < reuse:
            other = paths[int(rng.integers(len(paths)))]
            path = other[: int(rng.integers(0, len(other) + 1))]
        added = int(rng.integers(0, 6)) if path else int(rng.integers(1, 6))
        path = path + list(range(fresh, fresh + added))
        fresh += added
        paths.append(path)
    return paths


class WordTokenizer:
    """One token a word, number, blank or mark; ids in the order of their first appearance."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in re.findall(r"\w+|\s|[^\w\s]", text)]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        words = list(self._ids)
        return "".join(words[int(id)] for id in ids)


def text_trace(
    prompts: Sequence[str],
    page_size: int = 16,
    answers: Sequence[str] | None = None,
    namespaces: Sequence[str] | None = None,
    **columns: Sequence[Any],
) -> Trace:
    """Requests by their text, a second apart."""
    tokenizer = WordTokenizer()
    builder = TraceBuilder("made", "text", page_size, Skips())
    builder.outputs_cached = answers is not None
    for number, prompt in enumerate(prompts):
        ids = tokenizer.encode(prompt)
        stored = ids + (tokenizer.encode(answers[number]) if answers is not None else [])
        builder.add(
            Record(
                **{"id": str(number), "num_tokens": len(ids), "time": float(number)}
                | {name: values[number] for name, values in columns.items()},
                tokens=np.array(stored, dtype=np.int32),
                labels={"namespace": namespaces[number] if namespaces is not None else ""},
            )
        )
    return builder.build("words", tokenizer.decode)
