"""What the programs on an engine still need of its cache, and what nobody needs any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from trunkline.radix import PrefixCache

from .prefixes import Prefixes
from .tickets import Ticket

__all__ = ["Needs"]


class Needs:
    """The prompts of all programs that run: they may come back to any of theirs until they end.

    What only a program that has ended needed is retired: it is evicted before all else, so before the pages that
    anybody else has in the cache, however long ago those were used.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._prompts = Prefixes()
        self._tickets: defaultdict[int, list[Ticket]] = defaultdict(list)
        self._begun = 0

    def begin(self) -> None:
        """Programs begin to run: what is cached by now is somebody else's, and never retired."""
        self._begun = self._cache.tick

    def add(self, run: int, tickets: Sequence[Ticket]) -> None:
        """A program asks for these."""
        self._tickets[run] += tickets
        for ticket in tickets:
            self._prompts.add(ticket.prompt_key)

    def end(self, run: int, *, retire: bool) -> None:
        """A program has ended. `retire`: others of its batch still run, and what they don't share can go.

        O(log n + tokens) for each of its requests.
        """
        tickets = self._tickets.pop(run, [])
        for ticket in tickets:
            self._prompts.remove(ticket.prompt_key)
        for ticket in tickets if retire else ():
            shared = self._prompts.longest(ticket.prompt_key)
            for choice in ticket.choices:
                tokens = np.append(ticket.tokens, np.array(choice.token_ids, dtype=np.int32))
                self._cache.retire(tokens, start=shared, since=self._begun)
