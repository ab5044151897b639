"""Constrained answers: which tokens may come next, and which must.

The grammars are llguidance's (Microsoft, the Earley parser and token trie of its README). Here is only who knows
what when: the state of a request is a function of its output tokens, kept between steps but never relied on, so a
request that was preempted, or whose state was dropped, goes on as if nothing had been.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trunkline.runtime.errors import RequestError

from .constraint import Constraint, laid_out

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from trunkline.runtime.loading import Tokenizer

__all__ = ["Grammars", "Mask", "Waiting", "reason_against"]

MAX_STATES = 1024
MAX_COMPILED = 256

_BIASES = np.array([-np.inf, 0.0], dtype=np.float32)
Mask = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request whose next token is constrained: its id, what by, and its output tokens, int32."""

    id: str
    constraint: Constraint
    output: npt.NDArray[np.int32]


@dataclass(slots=True)
class _State:
    constraint: Constraint
    matcher: LLMatcher
    seen: list[int]


class Grammars:
    """The grammars of one model's requests. `check` and `knows` may be called from any thread; the rest by one caller,
    beside whom a thread of its own computes masks.

    Args:
        tokenizer: gives the bytes of each token.
        vocab_size: tokens of the model, perhaps more than the tokenizer's.
        eos_token_ids: the tokens that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = Lock()
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._states: OrderedDict[str, _State] = OrderedDict()

    def check(self, constraint: Constraint) -> None:
        """Raises RequestError, in the grammar's own words, for what is no grammar or can't be supported.

        Compiles what isn't known, which takes seconds for a large schema, nearly all of them without Python's lock.
        """
        if not self._eos_token_ids:
            raise RequestError("constraints need a model with an end-of-sequence token", "constraint")
        self._template(constraint)

    def knows(self, constraint: Constraint) -> bool:
        """Whether it is compiled, so that `check` takes no time."""
        with self._lock:
            return constraint in self._compiled

    def begin(self, waiting: Sequence[Waiting]) -> Future[Mapping[str, Mask]] | None:
        """Begins to compute which tokens may come next, by request, beside the caller; None where nobody waits.

        A result is float32 [vocab], to be added to the logits: 0 where a token may come, -inf where not. Roughly
        0.2 ms a request, less than the forward pass it is hidden behind.
        """
        return self._thread.submit(self._masks, tuple(waiting)) if waiting else None

    def forced(self, request: Waiting, token: int) -> tuple[int, ...]:
        """The tokens that must follow once `token` was sampled, end of sequence included; often none.

        Called after the result of `begin` was taken.
        """
        if token in self._eos_token_ids:
            return ()
        state = self._state(request)
        if not self._consume(state, [token]):
            return ()
        forced = [] if state.matcher.is_stopped() else state.matcher.compute_ff_tokens()
        if forced and not self._consume(state, forced):
            return ()
        ending = [self._eos_token_ids[0]] if state.matcher.is_stopped() else []
        return (*forced, *ending)

    def _masks(self, waiting: Sequence[Waiting]) -> Mapping[str, Mask]:
        return {request.id: self._mask(self._state(request).matcher) for request in waiting}

    def _mask(self, matcher: LLMatcher) -> Mask:
        """No token may come where the grammar gave up, before or now."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            return np.full(self._vocab_size, -np.inf, dtype=np.float32)
        return _BIASES[np.unpackbits(bits, bitorder="little")[: self._vocab_size]]

    def _state(self, request: Waiting) -> _State:
        """The state behind a request's output: the one that is kept, gone on with, or a new one."""
        state = self._states.get(request.id)
        output = request.output.tolist()
        if (
            state is None
            or state.constraint != request.constraint
            or state.seen != output[: len(state.seen)]
            or state.matcher.is_error()
        ):
            state = _State(request.constraint, self._template(request.constraint).deep_copy(), [])
            self._states[request.id] = state
            if len(self._states) > MAX_STATES:
                self._states.popitem(last=False)
        self._states.move_to_end(request.id)
        self._consume(state, output[len(state.seen) :])
        return state

    def _consume(self, state: _State, tokens: Sequence[int]) -> bool:
        state.seen += tokens
        return not tokens or state.matcher.consume_tokens(list(tokens))

    def _template(self, constraint: Constraint) -> LLMatcher:
        """A matcher at the start, to be copied; for any thread. Nobody waits for what another one compiles."""
        with self._lock:
            found = self._compiled.get(constraint)
        if found is None:
            found = self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = found
            self._compiled.move_to_end(constraint)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, constraint: Constraint) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._guide, _grammar(constraint), log_level=0)
        if matcher.is_error():
            raise RequestError(
                f"{constraint.kind} is not a grammar that is supported: {_short(matcher.get_error())}",
                "constraint",
            )
        if np.isneginf(self._mask(matcher.deep_copy())).all():
            raise RequestError(
                f"{constraint.kind} allows no text, or is too large to be a grammar", "constraint"
            )
        return matcher

    @cached_property
    def _guide(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapper = TokenizerWrapper(_Vocabulary(self._tokenizer, self._eos_token_ids[0]))
        return LLTokenizer(wrapper, n_vocab=self._vocab_size, eos_token=self._eos_token_ids)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="trunkline-grammar")


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.id_to_bytes(id) for id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text.decode("utf-8", "replace"), add_bos=False).tolist()
        return ids


def reason_against(constraint: Constraint) -> str | None:
    """Why a source is no grammar, in the grammar's own words, or None; without a tokenizer, in milliseconds."""
    from llguidance import LLMatcher

    return _short(LLMatcher.validate_grammar(_grammar(constraint))) or None


def _short(reason: str) -> str:
    return " ".join(reason.split())[:300]


def _grammar(constraint: Constraint) -> str:
    """The source in llguidance's own form."""
    from llguidance import LLMatcher

    match constraint.kind:
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.source)
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(laid_out(json.loads(constraint.source)))
        case "choices":
            texts = [json.dumps(text, ensure_ascii=False) for text in json.loads(constraint.source)]
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(texts)}")
        case "ebnf":
            return LLMatcher.grammar_from_lark(constraint.source)
