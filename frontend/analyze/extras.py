"""Packages that are only needed in notebooks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import MissingExtra


def need(name: str) -> Any:
    """Import a package of the extra `analyze`. Raises MissingExtra."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise MissingExtra(f"{package} is not installed; run: pip install 'trunkline[analyze]'") from None
