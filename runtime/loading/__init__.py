"""Models, tokenizers and chat templates from folders, GGUF files, the hub or the embedded package."""

from .loader import LoadedModel, load_model, load_tokenizer
from .source import EMBEDDED_NAME
from .tokenizer import ChatPrompt, Tokenizer

__all__ = ["EMBEDDED_NAME", "ChatPrompt", "LoadedModel", "Tokenizer", "load_model", "load_tokenizer"]
