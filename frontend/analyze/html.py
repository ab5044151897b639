"""The report as one HTML file: data, style and script inside, nothing fetched, nothing sent."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from .prefixes import drawn_tree
from .reasons import EXPLANATIONS

if TYPE_CHECKING:
    from .analysis import Analysis

DRAWN_NODES = 1500

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main id="report"><noscript>This report draws itself with the script inside; please allow it.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def render(analysis: Analysis) -> str:
    """The whole page as text."""
    document = analysis.to_dict()
    document["tree"] = drawn_tree(analysis.trace, analysis.tree, DRAWN_NODES)
    document["reason_texts"] = {reason.value: text for reason, text in EXPLANATIONS.items()}
    # "<" never appears in the data, so nothing in it can end the script element or begin another.
    data = json.dumps(document, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    folder = files(__package__ or "")
    return _PAGE.format(
        title=escape(f"Cache analysis of {analysis.trace.name}"),
        style=(folder / "report.css").read_text(encoding="utf-8"),
        script=(folder / "report.js").read_text(encoding="utf-8"),
        data=data,
    )
