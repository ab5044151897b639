"""A language for programs around a model: text, `gen`, `select`, roles and forks on a state."""

from .backends import backend, set_default_backend
from .batch import Batch, Result
from .errors import BackendError, LangError, ProgramError, UnknownVariable, UnsupportedError
from .function import Program, function
from .parts import assistant, gen, image, select, system, user
from .records import Entry, Meta
from .remote import OpenAIBackend
from .report import BatchStats
from .state import State
from .streaming import AsyncStream, Piece, Stream
from .trunkline_server import TrunklineServer

__all__ = [
    "AsyncStream",
    "BackendError",
    "Batch",
    "BatchStats",
    "Entry",
    "LangError",
    "Meta",
    "OpenAIBackend",
    "Piece",
    "Program",
    "ProgramError",
    "Result",
    "State",
    "Stream",
    "TrunklineServer",
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
