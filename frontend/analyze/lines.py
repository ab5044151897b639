"""The records of an input, each with the number of its line; what is wrong with a line is counted, not hidden."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from .errors import InputError

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class BadRecord(Exception):
    """One record that can't be used; its text is the reason."""


@dataclass(slots=True)
class Skips:
    """Why records were left out: how many for each reason, and the first line with it."""

    counts: Counter[str] = field(default_factory=Counter)
    first_line: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, line: int, count: int = 1) -> None:
        self.counts[reason] += count
        self.first_line.setdefault(reason, line)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def describe(self) -> list[dict[str, Any]]:
        """The reasons, most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return [{"reason": why, "count": count, "first_line": self.first_line[why]} for why, count in ordered]


class Source:
    """An input file, gzipped or not, or stdin (`-`); read once from its start to its end."""

    def __init__(self, path: str | Path) -> None:
        self.is_stdin = str(path) == "-"
        self.name = "stdin" if self.is_stdin else Path(path).name
        self.path = Path(path)
        self.skips = Skips()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each line that isn't blank, with its number. A gzip stream that breaks off is a counted skip."""
        number = 0
        try:
            with self._open() as stream:
                for number, line in enumerate(stream, start=1):
                    if number == 1:
                        line = line.removeprefix(_BOM)
                    if line.strip():
                        yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if number == 0:
                raise InputError(f"{self.name}: is not a whole gzip file: {error}") from error
            self.skips.add("the gzip stream breaks off here; what follows is lost", number + 1)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with ExitStack() as opened:
            stream = sys.stdin.buffer if self.is_stdin else opened.enter_context(self.path.open("rb"))
            buffered = io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)
            if buffered.peek(2)[:2] == _GZIP:
                yield cast(IO[bytes], opened.enter_context(closing(gzip.GzipFile(fileobj=buffered))))
            else:
                yield buffered
