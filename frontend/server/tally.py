"""Counts and times of one request's output: its usage, and what the metrics get."""

from __future__ import annotations

import time

from trunkline.runtime.engine.outputs import RequestOutput

from .answers import PromptTokensDetails, Usage
from .limits import Place
from .metrics import Metrics
from .record import RequestRecord

__all__ = ["Tally"]


class Tally:
    """Follows the outputs of a request with some prompts of `n` choices each."""

    def __init__(
        self,
        prompt_lengths: list[int],
        n: int,
        record: RequestRecord,
        metrics: Metrics,
        place: Place,
        *,
        counts_output: bool,
    ) -> None:
        self._n = n
        self._record = record
        self._metrics = metrics
        self._place = place
        self._counts_output = counts_output
        self._cached = [0] * len(prompt_lengths)
        self._generated: dict[int, int] = {}
        self._last_at: dict[int, float] = {}
        record.num_prompt_tokens = sum(prompt_lengths)

    def add(self, choice: int, output: RequestOutput) -> None:
        """Takes note of what has just come for a choice."""
        now = time.monotonic()
        if not self._last_at:
            waited = now - self._record.started
            self._place.served(waited)
            self._metrics.first_token(waited)
        elif choice in self._last_at:
            self._metrics.next_token(now - self._last_at[choice])
        self._last_at[choice] = now
        if self._counts_output:
            self._generated[choice] = output.num_output_tokens
        prompt, continuation = divmod(choice, self._n)
        if continuation == 0:  # the others may share even the pages this one has just computed
            self._cached[prompt] = output.num_cached_tokens
        self._record.num_cached_tokens = sum(self._cached)
        self._record.num_output_tokens = sum(self._generated.values())

    def usage(self) -> Usage:
        """The tokens so far; a prompt counts once, however many choices it has."""
        record = self._record
        return Usage(
            prompt_tokens=record.num_prompt_tokens,
            completion_tokens=record.num_output_tokens,
            total_tokens=record.num_prompt_tokens + record.num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=record.num_cached_tokens),
        )
