"""What the choices of a request leave behind: tokens for the conversation's next turn, and lines of the request log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from trunkline.frontend.analyze.request_log import LoggedRequest, RequestLog
from trunkline.radix import Namespace
from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.outputs import RequestOutput
from trunkline.runtime.loading import Transcripts

__all__ = ["Ledger", "LedgerBook"]


@dataclass(frozen=True, slots=True)
class LedgerBook:
    """Where the ledgers of one server write."""

    transcripts: Transcripts
    log: RequestLog | None


@dataclass(slots=True)
class _Entry:
    """One choice: what was generated for it so far."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    first: float | None = None
    last: RequestOutput | None = None


class Ledger:
    """Follows the outputs of one request, whose prompts have `n` choices each.

    `sealed` is the rendered text of a chat's only prompt, as the tokenizer seals it; None for plain prompts.
    `labels` are the request log's: model, session, tenant.
    """

    def __init__(
        self,
        book: LedgerBook,
        id: str,
        prompts: list[Int32Array],
        n: int,
        namespace: Namespace,
        priority: int,
        labels: dict[str, str],
        sealed: str | None,
    ) -> None:
        self._book = book
        self._id = id
        self._prompts = prompts
        self._n = n
        self._namespace = namespace
        self._priority = priority
        self._labels = labels
        self._sealed = sealed
        self._arrived = time.time()
        self._entries: dict[int, _Entry] = {choice: _Entry() for choice in range(len(prompts) * n)}

    def add(self, choice: int, output: RequestOutput) -> None:
        """Takes note of what has come for a choice; a finished one is written down."""
        entry = self._entries[choice]
        entry.first = entry.first or output.at
        entry.text += output.text
        entry.tokens.extend(output.token_ids)
        entry.last = output
        if output.finish_reason is not None:
            del self._entries[choice]
            self._write(choice, entry, output.finish_reason)

    def close(self) -> None:
        """Writes down the choices that were cut off; what they said is not known to the character."""
        for choice, entry in self._entries.items():
            if entry.last is not None:
                self._write(choice, entry, "abort")
        self._entries.clear()

    def _write(self, choice: int, entry: _Entry, finish: str) -> None:
        prompt = self._prompts[choice // self._n]
        if self._sealed is not None and finish != "abort":
            self._remember(entry, prompt, self._sealed)
        if self._book.log is not None:
            assert entry.last is not None
            self._book.log.write(
                LoggedRequest(
                    id=self._id if choice == 0 else f"{self._id}.{choice}",
                    t=self._arrived,
                    first=entry.first,
                    end=entry.last.at,
                    prompt=prompt,
                    output=entry.tokens,
                    cached=entry.last.num_cached_tokens,
                    namespace=self._namespace,
                    priority=self._priority,
                    preemptions=entry.last.num_preemptions,
                    finish=finish,
                    labels=self._labels,
                )
            )

    def _remember(self, entry: _Entry, prompt: Int32Array, sealed: str) -> None:
        """The text and the tokens of this turn; without the token that ended it, which the template writes itself.

        An answer that a stop string cut has more tokens than text, so nothing can be said of it.
        """
        stop = entry.last.stop if entry.last is not None else None
        if isinstance(stop, str):
            return
        tokens = entry.tokens[:-1] if stop is not None else entry.tokens
        space = "\0".join(self._namespace)
        self._book.transcripts.remember(sealed + entry.text, [*prompt.tolist(), *tokens], space)
