"""How a call looks in the model's own text, what keeps it in that form, and how it is found there.

    <tool_call>
    {"name": "find", "arguments": {"city": "Bern"}}
    </tool_call>

The marks are those of the Hermes models, which Qwen's know too. Whoever may call answers under a grammar that has
no other form, so there is nothing to guess: arguments end at the first line break, which JSON text has none of.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from trunkline.runtime.sampling import Constraint, json_rule, reason_against

from .tools import Function

__all__ = ["CallParser", "Calling", "Piece", "spelled_call"]

MAX_CALLS = 16
MARK = "<tool_call>"
BEFORE_NAME = f'{MARK}\n{{"name": "'
BEFORE_ARGUMENTS = '", "arguments": '
AFTER_ARGUMENTS = "}\n</tool_call>"
BETWEEN = "\n"


def spelled_call(name: str, arguments: str) -> str:
    """A call as the model writes it; `arguments` are JSON text."""
    return f"{BEFORE_NAME}{name}{BEFORE_ARGUMENTS}{arguments}{AFTER_ARGUMENTS}"


@dataclass(frozen=True, slots=True)
class Calling:
    """Which functions an answer may call, and how.

    must: it has to call one; else it may be text, with calls behind it.
    named: the only one was forced by its name, and is called once.
    several: there may be more calls than one, 16 at most.
    """

    functions: tuple[Function, ...]
    must: bool
    named: bool
    several: bool

    def constraint(self) -> Constraint:
        """The grammar of such an answer."""
        more = f" ({_literal(BETWEEN)} call){{0,{MAX_CALLS - 1}}}" if self.several else ""
        named = " | ".join(f"call_{number}" for number in range(len(self.functions)))
        rules = [
            f"start: {'call' if self.must else 'PROSE | before_call marked'}{more}",
            f"call: {_literal(MARK)} marked",
            f"marked: ({named}) {_literal(AFTER_ARGUMENTS)}",
        ]
        for number, function in enumerate(self.functions):
            before = f"{BEFORE_NAME}{function.name}{BEFORE_ARGUMENTS}".removeprefix(MARK)
            rules.append(f"call_{number}: {_literal(before)} arguments_{number}")
            rules.append(f"arguments_{number}: {json_rule(function.parameters)}")
        if not self.must:
            rules.append(f"PROSE: /(?s:.*)/ & ~/(?s:.*{MARK}.*)/")
            rules.append(f"before_call[suffix={_literal(MARK)}]: /(?s:.*)/")
        return Constraint.ebnf("\n".join(rules))

    def problem(self) -> tuple[str, str] | None:
        """The name of the first function whose schema is not supported, and why."""
        for function in self.functions:
            reason = reason_against(Constraint.json_schema(function.parameters))
            if reason is not None:
                return function.name, reason
        return None

    def finish_reason(self, reason: str, parser: CallParser) -> str:
        """OpenAI's: a call that was forced by name is a plain "stop", other whole calls are "tool_calls"."""
        return "tool_calls" if reason == "stop" and parser.complete and not self.named else reason


@dataclass(frozen=True, slots=True)
class Piece:
    """What a stretch of text adds to an answer: prose, a call with its name, or a part of that call's arguments."""

    kind: Literal["prose", "call", "arguments"]
    text: str


class _At(Enum):
    """Where in an answer the parser is."""

    PROSE = auto()
    OPENING = auto()
    NAME = auto()
    LINKING = auto()
    ARGUMENTS = auto()
    CLOSING = auto()
    CALLED = auto()


# Text that says nothing: what it must be, and what comes after it.
_FIXED = {
    _At.OPENING: (BEFORE_NAME, _At.NAME),
    _At.LINKING: (BEFORE_ARGUMENTS, _At.ARGUMENTS),
    _At.CLOSING: (AFTER_ARGUMENTS, _At.CALLED),
    _At.CALLED: (BETWEEN + BEFORE_NAME, _At.NAME),
}


class CallParser:
    """Finds the calls in one answer's text, which arrives in pieces and keeps to the grammar of a `Calling`."""

    def __init__(self, calling: Calling) -> None:
        self._at = _At.OPENING if calling.must else _At.PROSE
        self._held = ""
        self._arguments = ""

    @property
    def complete(self) -> bool:
        """Whether there was a call, and the last one is whole."""
        return self._at is _At.CALLED

    def feed(self, text: str) -> list[Piece]:
        """What this text makes certain."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return [piece for piece in pieces if piece.text]

    def finish(self) -> list[Piece]:
        """What was held back, at the end of an answer, whole or cut."""
        held, self._held = self._held, ""
        if self._at is _At.PROSE:
            return [Piece("prose", held)] if held else []
        if self._at is _At.ARGUMENTS and held and not _is_json(self._arguments):
            return [Piece("arguments", held)]
        return []

    def _step(self, pieces: list[Piece]) -> bool:
        """Goes on to the next part of the answer if the text reaches that far."""
        match self._at:
            case _At.PROSE:
                return self._prose(pieces)
            case _At.NAME:
                name, quote, rest = self._held.partition('"')
                if quote:
                    pieces.append(Piece("call", name))
                    self._held, self._at, self._arguments = quote + rest, _At.LINKING, ""
                return bool(quote)
            case _At.ARGUMENTS:
                return self._argue(pieces)
            case fixed:
                text, following = _FIXED[fixed]
                if len(self._held) < len(text):
                    return False
                self._held, self._at = self._held[len(text) :], following
                return True

    def _prose(self, pieces: list[Piece]) -> bool:
        prose, mark, rest = self._held.partition(MARK)
        if mark:
            pieces.append(Piece("prose", prose.removesuffix(BETWEEN)))
            self._held, self._at = mark + rest, _At.OPENING
            return True
        shown = len(prose) - _num_of_beginning(prose)
        pieces.append(Piece("prose", prose[:shown]))
        self._held = prose[shown:]
        return False

    def _argue(self, pieces: list[Piece]) -> bool:
        """Passes arguments on but for the last character, which may be the brace behind them."""
        end = self._held.find("\n")
        shown = (len(self._held) if end < 0 else end) - 1
        if shown > 0:
            pieces.append(Piece("arguments", self._held[:shown]))
            self._arguments += self._held[:shown]
            self._held = self._held[shown:]
        if end >= 0:
            self._at = _At.CLOSING
        return end >= 0


def _num_of_beginning(text: str) -> int:
    """Characters at the end of a text that may be the beginning of a call."""
    before = BETWEEN + MARK
    for size in range(min(len(text), len(before) - 1), 0, -1):
        if before.startswith(text[-size:]) or MARK.startswith(text[-size:]):
            return size
    return 0


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _literal(text: str) -> str:
    return json.dumps(text)
