"""What a program adds to its state: text, calls of the model, roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, NoReturn, TypedDict, Unpack, cast, get_args

from .errors import LangError, UnsupportedError

__all__ = [
    "CONSTRAINTS",
    "DEFAULT_MAX_TOKENS",
    "Gen",
    "Options",
    "Part",
    "Parts",
    "Role",
    "Select",
    "SelectMethod",
    "assistant",
    "checked_options",
    "flatten",
    "gen",
    "image",
    "merged_options",
    "select",
    "system",
    "user",
]

DEFAULT_MAX_TOKENS = 256
MAX_CHOICES = 4096
RoleName = Literal["system", "user", "assistant"]
SelectMethod = Literal["token_length_normalized", "greedy_token", "unconditional_normalized"]


class Options(TypedDict, total=False):
    """How `gen` samples: the fields of `SamplingParams`, with its ranges.

    An option that is given nowhere has the default of `SamplingParams`, but `max_tokens` is 256, or what the
    context leaves where that is less. At most one of the last four says what the text must look like: a regular
    expression for all of it, some texts to choose from, a JSON schema (or pydantic model), or a grammar in Lark's
    EBNF. Where a run has defaults, one of a `gen` takes the place of the run's.
    """

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    logprobs: int
    n: int
    regex: str
    choices: Sequence[str]
    json_schema: Any
    ebnf: str


CONSTRAINTS = ("regex", "choices", "json_schema", "ebnf")


class _Addable:
    """Parts are written one after the other with `+`."""

    __slots__ = ()

    def __add__(self, other: Part) -> Parts:
        return Parts((*flatten(self), *flatten(other)))

    def __radd__(self, other: Part) -> Parts:
        return Parts((*flatten(other), *flatten(self)))


@dataclass(frozen=True, slots=True)
class Gen(_Addable):
    """A place where the model writes; made by `gen`."""

    name: str | None
    options: Options

    def __str__(self) -> str:
        return "gen" if self.name is None else f"gen {self.name!r}"


@dataclass(frozen=True, slots=True)
class Select(_Addable):
    """A place where the model chooses; made by `select`."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod

    def __str__(self) -> str:
        return "select" if self.name is None else f"select {self.name!r}"


@dataclass(frozen=True, slots=True)
class Parts(_Addable):
    """Several parts, one after the other."""

    items: tuple[str | Gen | Select | Role, ...]


@dataclass(frozen=True, slots=True)
class Role(_Addable):
    """A whole message of a conversation; made by `system`, `user` and `assistant`."""

    role: RoleName
    parts: tuple[str | Gen | Select, ...]


Part = str | Gen | Select | Parts | Role | _Addable


def gen(name: str | None = None, **options: Unpack[Options]) -> Gen:
    """The model goes on here; the text is appended and, with a name, kept as variable `name`.

    With `n` > 1 the variable is the list of all n texts, and the state goes on with the first. Raises LangError
    for an option that doesn't exist.
    """
    return Gen(_checked_name(name), checked_options(options))


def select(
    name: str | None = None,
    choices: Sequence[str] = (),
    method: SelectMethod = "token_length_normalized",
) -> Select:
    """The likeliest of `choices` is appended and, with a name, kept as variable `name`; ties go to the first.

    Methods, all over exactly the choice's own tokens (`s.meta(name).scores` has the score of each):
    `token_length_normalized`, the mean log-probability of a token; `greedy_token`, token by token the choices
    whose next token is likeliest stay, where one that has ended goes on with its mean;
    `unconditional_normalized`, the mean gain of a token's log-probability over the choice without the prompt.

    Raises LangError for no choice, an empty one, or over 4096 of them.
    """
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise LangError(f"select: choices must be a list of strings, not {choices!r:.80}")
    if not choices:
        raise LangError("select: there is no choice")
    if len(choices) > MAX_CHOICES:
        raise LangError(f"select: {len(choices)} choices, at most {MAX_CHOICES} are allowed")
    if "" in choices:
        raise LangError(f"select: choices[{list(choices).index('')}] is empty")
    if method not in get_args(SelectMethod):
        raise LangError(f"select: method {method!r} is none of {', '.join(get_args(SelectMethod))}")
    return Select(_checked_name(name), tuple(choices), method)


def system(*parts: Part) -> Role:
    """A system message."""
    return Role("system", _inside("system", parts))


def user(*parts: Part) -> Role:
    """A message of the user's."""
    return Role("user", _inside("user", parts))


def assistant(*parts: Part) -> Role:
    """A message of the model's: `assistant(gen("answer"))`."""
    return Role("assistant", _inside("assistant", parts))


def image(*_: Any, **__: Any) -> NoReturn:
    """Refused: the models here read text."""
    raise UnsupportedError("image is not supported: the models that run here read text only")


def flatten(part: Part) -> tuple[str | Gen | Select | Role, ...]:
    """A part as the ones it consists of; raises LangError for what is none."""
    if isinstance(part, Parts):
        return part.items
    if isinstance(part, str | Gen | Select | Role):
        return (part,)
    raise LangError(f"a state takes text, gen, select and roles, not {type(part).__name__} {part!r:.80}")


def checked_options(options: Options) -> Options:
    """The options as they are; raises LangError for one that doesn't exist."""
    for name in options:
        if name not in Options.__annotations__:
            near = get_close_matches(name, Options.__annotations__, n=1)
            raise LangError(f"gen has no option {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
    constraints = [name for name in CONSTRAINTS if name in options]
    if len(constraints) > 1:
        raise LangError(f"gen: {' and '.join(constraints)} exclude each other")
    return options


def merged_options(defaults: Options, own: Options) -> Options:
    """A run's options with those of one `gen` before them."""
    constrained = any(name in own for name in CONSTRAINTS)
    kept = {name: value for name, value in defaults.items() if not (constrained and name in CONSTRAINTS)}
    return cast(Options, {**kept, **own})


def _inside(role: RoleName, parts: Sequence[Part]) -> tuple[str | Gen | Select, ...]:
    items: list[str | Gen | Select] = []
    for item in (item for part in parts for item in flatten(part)):
        if isinstance(item, Role):
            raise LangError(f"a role stands inside another: {item.role} in {role}")
        items.append(item)
    return tuple(items)


def _checked_name(name: str | None) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise LangError(f"the name of a variable must be a string that is not empty, not {name!r:.80}")
    return name
