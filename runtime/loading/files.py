"""Reading small files, with errors that name them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trunkline.runtime.errors import LoadError, RuntimeRoomError


def read_text(path: Path) -> str:
    """The file's text (UTF-8); LoadError when it isn't there or isn't text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LoadError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: can't be read: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The file's JSON object; LoadError when it isn't there, isn't JSON or isn't an object."""
    try:
        value = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise LoadError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{path}: a JSON object was expected, not {type(value).__name__}")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Like `read_json`, but an absent file is an empty object."""
    return read_json(path) if path.is_file() else {}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path before the errors of parts that don't know it."""
    try:
        yield
    except RuntimeRoomError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from None


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """`naming` for code that walks through somebody's JSON: a field of the wrong type is the file's fault."""
    with naming(path):
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise LoadError(f"can't be understood: {type(error).__name__}: {reason}") from error
