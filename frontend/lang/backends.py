"""What runs the model calls of programs, and which one is used where none is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from weakref import WeakValueDictionary

from .content import Prompt
from .errors import LangError
from .parts import Options
from .scoring import ChoiceLogprobs

if TYPE_CHECKING:
    from trunkline.radix.tokens import Int32Array
    from trunkline.runtime.engine import Engine

    from .engine_backend import EngineBackend

__all__ = ["Answer", "Answers", "Backend", "Scores", "Served", "backend", "resolve", "set_default_backend"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One continuation. `token_ids` are None where the backend doesn't tell them, or they spell more than `text`."""

    text: str
    finish_reason: str
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What one request cost: tokens of its prompt, of them from the cache, and generated.

    In process also which tokens they were, for the best that a cache could have done: `reusable` is the number
    of prompt tokens that any cache could have given.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    prompt: Int32Array | None = None
    output: Int32Array | None = None
    reusable: int = 0


@dataclass(frozen=True, slots=True)
class Answers:
    """The `n` continuations of a prompt and what they cost."""

    answers: tuple[Answer, ...]
    served: tuple[Served, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """The log-probabilities of each choice, in order, and what they cost."""

    choices: tuple[ChoiceLogprobs, ...]
    served: tuple[Served, ...]


class Backend(Protocol):
    """Where the model is. Each run enters it once, on its own event loop; a call that is cancelled is aborted."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def generate(
        self, prompt: Prompt, options: Options, on_text: Callable[[str], None] | None = None
    ) -> Answers:
        """Continues a prompt; `on_text` gets the first answer's text as it comes."""

    async def score(self, prompt: Prompt, choices: Sequence[str], *, unconditional: bool) -> Scores:
        """The log-probabilities of each choice's own tokens behind the prompt, and behind none where asked."""

    def ended(self, run: int, *, more: bool) -> None:
        """A run (`Prompt.run`) asks for nothing any more; `more`: others of its batch do."""


_default: ContextVar[Backend | None] = ContextVar("trunkline_backend", default=None)
_process_default: list[Backend] = []
# By the engine's id: an entry lives as long as its wrapper, and that keeps the engine.
_wrapped: WeakValueDictionary[int, EngineBackend] = WeakValueDictionary()


def set_default_backend(backend: Backend | Engine | None) -> None:
    """Names the backend of every run that names none itself, in all threads; None takes it back."""
    _process_default[:] = [] if backend is None else [resolve(backend)]


@contextmanager
def backend(backend: Backend | Engine) -> Iterator[Backend]:
    """Inside this block, and only in this task or thread, runs use `backend`."""
    resolved = resolve(backend)
    token = _default.set(resolved)
    try:
        yield resolved
    finally:
        _default.reset(token)


def resolve(given: Backend | Engine | None) -> Backend:
    """The backend that was given, or the one in force; an `Engine` is wrapped, always in the same wrapper.

    Raises LangError where there is none.
    """
    if given is None:
        found = _default.get() or (_process_default[0] if _process_default else None)
        if found is None:
            raise LangError(
                "no backend: name one with set_default_backend(Engine()), `with backend(...)` or run(backend=...)"
            )
        return found
    if hasattr(given, "add_request"):
        from .engine_backend import EngineBackend

        engine = cast("Engine", given)
        wrapper = _wrapped.get(id(engine)) or EngineBackend(engine)
        _wrapped[id(engine)] = wrapper
        return wrapper
    return given
