"""Stop strings the plain way: search the text at every length it once had."""

from __future__ import annotations

from collections.abc import Sequence


def slow_cut(text: str, stops: Sequence[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    """The text before the stop that ends earliest (the longest of several), and that stop."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


def slow_held(text: str, stops: Sequence[str]) -> str:
    """The longest end of the text that a stop begins with."""
    for start in range(len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[start:]
    return ""
