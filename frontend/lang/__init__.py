"""A language for programs around a model: text, `gen`, `select`, roles and forks on a state."""

from .backends import backend, set_default_backend
from .errors import BackendError, LangError, ProgramError, UnknownVariable, UnsupportedError
from .function import Program, Result, function
from .parts import assistant, gen, image, select, system, user
from .records import Entry, Meta
from .state import State

__all__ = [
    "BackendError",
    "Entry",
    "LangError",
    "Meta",
    "Program",
    "ProgramError",
    "Result",
    "State",
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
