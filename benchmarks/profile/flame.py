"""A flame graph of measured spans, as one SVG file without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from .spans import Path

__all__ = ["flame_graph"]

WIDTH, ROW, CHARACTER = 1200, 22, 7
COLOURS = ("#d97757", "#e0a458", "#c8b560", "#8fae7a", "#6a9fb5", "#8d86c9", "#b97fa8")


def flame_graph(seconds: Mapping[Path, float], steps: int, title: str) -> str:
    """Boxes as wide as their share of the first level's time, what is called above what calls; milliseconds a step."""
    depth = max(len(path) for path in seconds)
    whole = sum(value for path, value in seconds.items() if len(path) == 1)
    height = (depth + 2) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
        f'font-size="12"><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="6" y="15">{escape(title)}</text>',
    ]
    for path, begin in _begins(seconds).items():
        left, width = begin / whole * WIDTH, seconds[path] / whole * WIDTH
        top = height - (len(path) + 0.5) * ROW
        label = f"{path[-1]} {seconds[path] / steps * 1e3:.3g} ms, {seconds[path] / whole:.1%}"
        shown = label[: max(0, int(width - 6) // CHARACTER)]
        colour = COLOURS[sum(map(ord, path[-1])) % len(COLOURS)]
        parts.append(
            f"<g><title>{escape(' > '.join(path))}: {escape(label)}</title>"
            f'<rect x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{ROW - 1}" fill="{colour}"/>'
            f'<text x="{left + 3:.2f}" y="{top + 15:.1f}">{escape(shown)}</text></g>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _begins(seconds: Mapping[Path, float]) -> dict[Path, float]:
    """Where each box begins, in seconds: beside its earlier siblings, the largest first."""
    begins: dict[Path, float] = {}
    filled: dict[Path, float] = {(): 0.0}
    for path in sorted(seconds, key=lambda path: (len(path), -seconds[path])):
        parent = path[:-1]
        begins[path] = filled[path] = filled[parent]
        filled[parent] += seconds[path]
    return begins
