"""`trunkline analyze`: why prompts missed the cache, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analysis import Analysis

__all__ = ["analyze"]


def analyze(
    source: str | Path,
    *,
    policies: tuple[str, ...] | None = None,
    size_tokens: int | None = None,
    policy: str = "lru",
    sizes: int = 14,
    twins_share: bool = True,
    tokenizer: str | None = None,
    page_size: int = 16,
    block_size: int | None = None,
    time_unit: str | None = None,
    progress: bool = False,
) -> Analysis:
    """Analyse a trace, a request log or a file of texts (a path, or "-" for stdin).

    The result has `frames` (pandas), `figures` (plotly), `advice`, `reasons`, `curves`, `html()` and `to_dict()`.
    The arguments are those of the command. `progress` shows bars on stderr. Raises InputError when nothing in
    the input can be used, AnalyzeError for settings that can't be.
    """
    from rich.console import Console

    from .analysis import AnalysisOptions, analyse
    from .progress import Silent, TerminalProgress
    from .reading import InputOptions, read_trace

    reading = InputOptions(tokenizer, page_size, block_size, time_unit)
    options = AnalysisOptions(policies, size_tokens, policy, sizes, twins_share)
    if not progress:
        return analyse(read_trace(source, reading, Silent()), options)
    with TerminalProgress(Console(stderr=True)) as bar:
        return analyse(read_trace(source, reading, bar), options, bar)
