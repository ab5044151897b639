"""Programs on an `Engine` in this process: one step at a time, between the programs' own turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.outputs import Choice, RequestOutput
from trunkline.runtime.sampling import Constraint, SamplingParams

from .backends import Answer, Answers, Scores, Served
from .content import Generated, Prompt
from .early_release import Needs
from .errors import BackendError, LangError
from .ordering import PrefixQueue
from .parts import CONSTRAINTS, DEFAULT_MAX_TOKENS, Options
from .scoring import ChoiceLogprobs
from .tickets import Ticket

if TYPE_CHECKING:
    from trunkline.runtime.engine import Engine

__all__ = ["EngineBackend"]


class EngineBackend:
    """A backend that owns the steps of an `Engine` while programs run on it; nobody else may step it then.

    Requests wait here, in the order of a walk through the tree of their prompts, and enter the engine as it has
    room: a prefix is computed once and stays until the last request that begins with it has entered. When a program of a
    batch ends, what no other one shares is the first to be evicted.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._window = engine.config.scheduler.max_running
        self._queue: PrefixQueue[Ticket] = PrefixQueue()
        self._running: dict[str, Ticket] = {}
        self._pump: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._users = 0
        self._needs = Needs(engine.cache)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._users and self._loop is not loop:
            raise LangError("the engine is in use by programs of another event loop or thread")
        self._loop = loop
        if not self._users:
            self._needs.begin()
        self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1

    async def generate(
        self, prompt: Prompt, options: Options, on_text: Callable[[str], None] | None = None
    ) -> Answers:
        """See `Backend.generate`; raises RequestError for what can't be served and BackendError for what failed."""
        tokens = self.encode(prompt)
        params = self._params(options, len(tokens))
        ticket = Ticket(tokens, params, self._promise(), on_text, prompt.follows)
        await self._serve(prompt.run, [ticket])
        answers = tuple(self._answer(choice) for choice in ticket.choices)
        reusable = len(tokens) - 1
        return Answers(answers, tuple(_served(ticket, choice, reusable) for choice in ticket.choices))

    async def score(self, prompt: Prompt, choices: Sequence[str], *, unconditional: bool) -> Scores:
        """See `Backend.score`; what the choices share, the prompt above all, is computed once."""
        prefix = self.encode(prompt)
        options = [self.engine.tokenizer.encode(choice, add_bos=False) for choice in choices]
        tickets = [self._scoring(prefix, option, prompt.follows) for option in options]
        if unconditional:
            nothing = self._nothing()
            tickets += [self._scoring(nothing, option, prompt.follows) for option in options]
        await self._serve(prompt.run, tickets)
        values = [_values(ticket) for ticket in tickets]
        bare: Sequence[tuple[float, ...] | None] = values[len(options) :] or [None] * len(options)
        return Scores(
            tuple(
                ChoiceLogprobs(tuple(option.tolist()), value, free)
                for option, value, free in zip(options, values, bare, strict=False)
            ),
            tuple(
                _served(ticket, choice, ticket.params.prompt_logprobs_start - 1)
                for ticket in tickets
                for choice in ticket.choices
            ),
        )

    def ended(self, run: int, *, more: bool) -> None:
        """See `Backend.ended`: what only this run needed is evicted first, while others of its batch run."""
        self._needs.end(run, retire=more)

    def encode(self, prompt: Prompt) -> Int32Array:
        """The token ids [tokens] int32 of a prompt.

        Text is encoded in whole stretches between answers, whose own tokens are kept: what was cached of
        them is found again. Raises LangError for an empty prompt of a model without a BOS.
        """
        tokenizer = self.engine.tokenizer
        if prompt.messages is not None:
            begun = prompt.begun
            messages = [*prompt.messages, *([{"role": "assistant", "content": begun}] if begun else [])]
            return tokenizer.render_chat(
                messages, add_generation_prompt=not begun, continue_final=bool(begun)
            ).ids
        parts: list[Int32Array] = []
        for stretch in _stretches(prompt):
            if isinstance(stretch, str):
                parts.append(tokenizer.encode(stretch, add_bos=None if not parts else False))
            else:
                parts.append(np.array(stretch, dtype=np.int32))
        return np.concatenate(parts) if parts else self._nothing()

    def _nothing(self) -> Int32Array:
        """What stands before the first token of a text."""
        bos = self.engine.tokenizer.bos_token_id
        if bos is None:
            raise LangError("the prompt is empty, and the model has no token to begin with")
        return np.array([bos], dtype=np.int32)

    def _params(self, options: Options, num_prompt_tokens: int) -> SamplingParams:
        room = max(1, self.engine.max_model_len - num_prompt_tokens)
        sampling: dict[str, Any] = {name: value for name, value in options.items() if name not in CONSTRAINTS}
        sampling.setdefault("max_tokens", min(DEFAULT_MAX_TOKENS, room))
        return SamplingParams(**sampling, constraint=_constraint(options))

    def _scoring(self, prefix: Int32Array, option: Int32Array, follows: bool) -> Ticket:
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, prompt_logprobs_start=len(prefix)
        )
        return Ticket(np.concatenate([prefix, option]), params, self._promise(), None, follows)

    def _promise(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def _serve(self, run: int, tickets: Sequence[Ticket]) -> None:
        """Queues the tickets and waits for all; leaving early, by an error or a cancellation, aborts them."""
        self._needs.add(run, tickets)
        for ticket in tickets:
            self._queue.add(ticket)
        if self._pump is None:
            self._pump = asyncio.create_task(self._work())
        try:
            for ticket in tickets:
                await ticket.done
        finally:
            for ticket in tickets:
                self._withdraw(ticket)

    def _withdraw(self, ticket: Ticket) -> None:
        if not ticket.done.cancel() and not ticket.done.cancelled():
            ticket.done.exception()  # seen, whether or not anybody waited for this one
        if ticket.id is None:
            self._queue.discard(ticket)
        elif self._running.pop(ticket.id, None) is not None:
            self.engine.abort(ticket.id)

    async def _work(self) -> None:
        """Steps the engine as long as there is something to compute."""
        try:
            while self._queue or self._running:
                self._admit()
                if self._running:
                    for output in self.engine.step():
                        self._deliver(output)
                await asyncio.sleep(0)
        except Exception as error:
            for ticket in (*self._running.values(), *self._queue.drain()):
                if not ticket.done.done():
                    ticket.done.set_exception(BackendError(f"the engine failed: {error}"))
            self._running.clear()
        finally:
            self._pump = None

    def _admit(self) -> None:
        while self._queue and len(self._running) < self._window:
            ticket = self._queue.pop()
            try:
                ticket.id = self.engine.add_request(ticket.tokens, ticket.params)
            except Exception as error:
                ticket.done.set_exception(error)
            else:
                self._running[ticket.id] = ticket

    def _deliver(self, output: RequestOutput) -> None:
        ticket = self._running.get(output.id)
        if ticket is None:
            return
        ticket.add(output)
        if output.last:
            del self._running[output.id]
            ticket.finish()

    def _answer(self, choice: Choice) -> Answer:
        """Token ids are kept where they spell just the text that is seen."""
        ids = tuple(choice.token_ids[:-1] if isinstance(choice.stop, int) else choice.token_ids)
        exact = self.engine.tokenizer.decode(ids, skip_special=False) == choice.text
        logprobs = tuple(choice.logprobs) if choice.logprobs is not None else None
        return Answer(choice.text, choice.finish_reason or "length", ids if exact else None, logprobs)


def _stretches(prompt: Prompt) -> Iterator[str | tuple[int, ...]]:
    """Text between answers in one piece; answers as the ids they consist of, or as text where those aren't known."""
    text: list[str] = []
    for piece in prompt.pieces:
        if isinstance(piece, Generated) and piece.token_ids is not None:
            if text:
                yield "".join(text)
                text = []
            if piece.token_ids:
                yield piece.token_ids
        else:
            text.append(piece.text if isinstance(piece, Generated) else piece)
    if text:
        yield "".join(text)


def _constraint(options: Options) -> Constraint | None:
    if "regex" in options:
        return Constraint.regex(options["regex"])
    if "choices" in options:
        return Constraint.choices(options["choices"])
    if "json_schema" in options:
        return Constraint.json_schema(options["json_schema"])
    return Constraint.ebnf(options["ebnf"]) if "ebnf" in options else None


def _values(ticket: Ticket) -> tuple[float, ...]:
    assert ticket.scored is not None, "the engine scored no token of the choice"
    return tuple(entry.token.logprob for entry in ticket.scored if entry is not None)


def _served(ticket: Ticket, choice: Choice, reusable: int) -> Served:
    return Served(
        num_prompt_tokens=len(ticket.tokens),
        num_cached_tokens=choice.num_cached_tokens,
        num_output_tokens=len(choice.token_ids),
        prompt=ticket.tokens,
        output=np.array(choice.token_ids, dtype=np.int32),
        reusable=reusable,
    )
