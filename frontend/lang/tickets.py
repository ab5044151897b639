"""The requests that wait for an engine, in the order in which they share most."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count

from sortedcontainers import SortedDict

from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.outputs import Choice, RequestOutput
from trunkline.runtime.sampling import SamplingParams, TokenLogprobs

from .errors import BackendError

__all__ = ["Ticket", "TicketQueue"]

Key = tuple[bytes, int]
_numbers = count()


class Ticket:
    """One request of a program: `done` is resolved when all its choices are finished.

    `follows` marks a prompt that goes on behind an answer of the model: its pages are still warm.
    """

    def __init__(
        self,
        tokens: Int32Array,
        params: SamplingParams,
        done: asyncio.Future[None],
        on_text: Callable[[str], None] | None,
        follows: bool,
    ) -> None:
        self.tokens = tokens
        self.params = params
        self.done = done
        self.follows = follows
        self.id: str | None = None
        self.choices = [Choice() for _ in range(params.n)]
        self.scored: tuple[TokenLogprobs | None, ...] | None = None
        self.key: Key = (tokens.astype(">i4").tobytes(), next(_numbers))
        self._on_text = on_text

    def add(self, output: RequestOutput) -> None:
        """Takes what a step brought."""
        self.choices[output.index].add(output)
        if output.prompt_logprobs is not None:
            self.scored = output.prompt_logprobs
        if self._on_text is not None and output.index == 0 and output.text:
            self._on_text(output.text)

    def finish(self) -> None:
        """Resolves `done`: with BackendError where a choice did not come to its end."""
        if self.done.done():
            return
        for choice in self.choices:
            if choice.finish_reason not in ("stop", "length"):
                self.done.set_exception(BackendError(choice.error or "the request was aborted"))
                return
        self.done.set_result(None)


class TicketQueue:
    """Tickets by their prompts: `pop` walks the tree of all that wait depth first, and goes round.

    Prompts sorted as byte strings *are* that walk: those that share a prefix stand together. A prompt that
    arrives behind the walk's place has its turn in the next round. Tickets that follow an answer go first.
    O(log n) each.
    """

    def __init__(self) -> None:
        self._sorted: SortedDict[Key, Ticket] = SortedDict()
        self._warm: deque[Ticket] = deque()
        self._place: Key = (b"", -1)

    def __len__(self) -> int:
        return len(self._sorted) + len(self._warm)

    def add(self, ticket: Ticket) -> None:
        if ticket.follows:
            self._warm.append(ticket)
        else:
            self._sorted[ticket.key] = ticket

    def pop(self) -> Ticket:
        """The next ticket; the queue must not be empty."""
        if self._warm:
            return self._warm.popleft()
        index = self._sorted.bisect_right(self._place)
        ticket: Ticket
        self._place, ticket = self._sorted.popitem(index if index < len(self._sorted) else 0)
        return ticket

    def discard(self, ticket: Ticket) -> None:
        """Takes a ticket out, if it is in."""
        if ticket in self._warm:
            self._warm.remove(ticket)
        self._sorted.pop(ticket.key, None)

    def drain(self) -> list[Ticket]:
        """Takes out all."""
        left = [*self._warm, *self._sorted.values()]
        self._warm.clear()
        self._sorted.clear()
        return left
