"""A language for programs around a model: text, `gen`, `select`, roles and forks on a state."""

from .backends import backend, set_default_backend
from .batch import Batch, Result
from .errors import BackendError, LangError, ProgramError, UnknownVariable, UnsupportedError
from .function import Program, function
from .parts import assistant, gen, image, select, system, user
from .records import Entry, Meta
from .report import BatchStats
from .state import State
from .streaming import AsyncStream, Piece, Stream

__all__ = [
    "AsyncStream",
    "BackendError",
    "Batch",
    "BatchStats",
    "Entry",
    "LangError",
    "Meta",
    "Piece",
    "Program",
    "ProgramError",
    "Result",
    "State",
    "Stream",
    "UnknownVariable",
    "UnsupportedError",
    "assistant",
    "backend",
    "function",
    "gen",
    "image",
    "select",
    "set_default_backend",
    "system",
    "user",
]
