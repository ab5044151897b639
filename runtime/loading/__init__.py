"""Models, tokenizers and chat templates from folders, GGUF files, the hub or the embedded package.

`load_model` brings torch with it and is imported on first use, so that tokenizers alone stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .chat_template import JsonText
from .source import EMBEDDED_NAME
from .tokenizer import ChatPrompt, Tokenizer
from .tokenizer_loader import load_tokenizer
from .transcripts import Transcripts

if TYPE_CHECKING:
    from .loader import LoadedModel, load_model

__all__ = [
    "EMBEDDED_NAME",
    "ChatPrompt",
    "JsonText",
    "LoadedModel",
    "Tokenizer",
    "Transcripts",
    "load_model",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in ("LoadedModel", "load_model"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.loader"), name)
