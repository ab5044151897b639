"""The exceptions of the language.

LangError
├── ProgramError        a step of a program failed; says where in the program
├── UnknownVariable     a variable was read that no step has made (also a KeyError)
├── UnsupportedError    asked of a backend, or of the language, that can't do it
└── BackendError        a backend could not be reached, or gave an error instead of an answer
"""

from __future__ import annotations

from dataclasses import dataclass

from trunkline.errors import TrunklineError

__all__ = ["BackendError", "LangError", "Position", "ProgramError", "UnknownVariable", "UnsupportedError"]


@dataclass(frozen=True, slots=True)
class Position:
    """A line of a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class LangError(TrunklineError):
    """Base of everything the language raises."""


class ProgramError(LangError):
    """A step of a program failed: `position` is the line that added it, `__cause__` what it met."""

    def __init__(self, step: str, position: Position, cause: BaseException) -> None:
        super().__init__(f"{position}: {step}: {cause or type(cause).__name__}")
        self.step = step
        self.position = position
        self.__cause__ = cause


class UnknownVariable(LangError, KeyError):
    """A variable was read that no step has made; the message names those there are."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show its repr


class UnsupportedError(LangError):
    """Something that this backend, or the language, can't do; names it."""


class BackendError(LangError):
    """A backend can't be reached, took too long, or answered with an error; `status` is HTTP's where there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
