"""Loading a tokenizer alone: no weights are read and no torch is imported."""

from __future__ import annotations

from pathlib import Path

from . import gguf_tokenizer, hf_tokenizer
from .files import parsing
from .gguf_file import GGUFFile
from .source import resolve
from .tokenizer import Tokenizer


def load_tokenizer(source: str | Path | None = None) -> Tokenizer:
    """The tokenizer of a model; same sources and errors as `load_model`."""
    found = resolve(source)
    return gguf_tokenizer_of(GGUFFile(found.path)) if found.is_gguf else folder_tokenizer(found.path)


def gguf_tokenizer_of(file: GGUFFile) -> Tokenizer:
    """The tokenizer in an open GGUF file."""
    with parsing(file.path):
        return Tokenizer(gguf_tokenizer.tokenizer_spec(file))


def folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face model folder."""
    with parsing(folder):
        return Tokenizer(hf_tokenizer.tokenizer_spec(folder))
