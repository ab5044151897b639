"""Server: an OpenAI-compatible HTTP interface to the engine."""

from .settings import ServerSettings

__all__ = ["ServerSettings"]
