"""What a batch cost, next to the least it could have cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .backends import Served
from .prefixes import Prefixes, sequence_key

__all__ = ["BatchStats", "best_possible"]


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Tokens of a batch: prompts submitted, of them computed and saved by the cache, and generated.

    `best_saved` is what a cache that never evicts would have saved, prompts of all requests together; None where
    the backend doesn't tell its tokens.
    """

    num_items: int
    num_failed: int
    num_requests: int
    num_prompt_tokens: int
    num_saved_tokens: int
    num_output_tokens: int
    best_saved: int | None

    @property
    def num_computed_tokens(self) -> int:
        """Prompt tokens that were not in the cache."""
        return self.num_prompt_tokens - self.num_saved_tokens

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the cache saved."""
        return self.num_saved_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def best_hit_rate(self) -> float | None:
        """The share that a cache which never evicts would have saved."""
        if self.best_saved is None:
            return None
        return self.best_saved / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def __str__(self) -> str:
        best = "" if self.best_hit_rate is None else f" of at most {self.best_hit_rate:.1%}"
        return (
            f"{self.num_items} items ({self.num_failed} failed), {self.num_requests} requests: "
            f"{self.num_prompt_tokens} prompt tokens, {self.num_computed_tokens} computed, "
            f"{self.num_saved_tokens} saved ({self.hit_rate:.1%}{best}), {self.num_output_tokens} generated"
        )

    @classmethod
    def of(cls, num_items: int, num_failed: int, served: Sequence[Served]) -> BatchStats:
        """Counts requests that are over, in the order in which they ended."""
        return cls(
            num_items=num_items,
            num_failed=num_failed,
            num_requests=len(served),
            num_prompt_tokens=sum(one.num_prompt_tokens for one in served),
            num_saved_tokens=sum(one.num_cached_tokens for one in served),
            num_output_tokens=sum(one.num_output_tokens for one in served),
            best_saved=best_possible(served),
        )


def best_possible(served: Iterable[Served]) -> int | None:
    """Prompt tokens that an endless cache would have given these requests, one after the other; None if unknown.

    O(n log n) comparisons of prompts.
    """
    cached = Prefixes()
    saved = 0
    for one in served:
        if one.prompt is None or one.output is None:
            return None
        saved += min(cached.longest(sequence_key(one.prompt)), one.reusable)
        computed = one.output[:-1]  # the last token of an answer is sampled, never computed
        cached.add(sequence_key(np.append(one.prompt, computed)))
    return saved
