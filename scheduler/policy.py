"""Orders of the waiting queue: which candidate is looked at first."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol

from sortedcontainers import SortedList

from .config import SchedulerConfig
from .depth_first import DepthFirstOrder
from .errors import InvariantError
from .state import RequestState


class Order(Protocol):
    """An order of waiting requests; every operation is O(log n) or O(depth of the prefix tree)."""

    def __len__(self) -> int: ...

    def add(self, state: RequestState) -> None:
        """Let a request wait."""
        ...

    def remove(self, state: RequestState) -> None:
        """Take a request out that waits."""
        ...

    def rescore(self, state: RequestState) -> None:
        """What is cached of a waiting request's prompt has changed."""
        ...

    def serving(self, state: RequestState, step: int) -> None:
        """A request that waits is about to be admitted, and removed."""
        ...

    def candidates(self, step: int) -> Iterator[RequestState]:
        """Everybody who waits, first choice first; made afresh at each call, ends with the next change."""
        ...

    def check(self) -> None:
        """Raise `InvariantError` where what is kept differs from a recount."""
        ...


class RankOrder:
    """Smallest rank first, arrival order among equals; ranks do not depend on the time.

    An age term that does not depend on the time: the rank is arrival_step * aging - score, so a request is
    overtaken only by later ones whose score is higher by more than `aging` per step that they came later.
    Nobody who arrives more than (highest score) / aging steps later can go first: that is the bound.
    """

    def __init__(self, rank: Callable[[RequestState], float]) -> None:
        self._rank = rank
        self._entries: SortedList = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, state: RequestState) -> None:
        state.order_entry = (self._rank(state), state.seq, state)
        self._entries.add(state.order_entry)

    def remove(self, state: RequestState) -> None:
        self._entries.remove(state.order_entry)
        state.order_entry = None

    def rescore(self, state: RequestState) -> None:
        entry = (self._rank(state), state.seq, state)
        if entry != state.order_entry:
            self._entries.remove(state.order_entry)
            self._entries.add(entry)
            state.order_entry = entry

    def serving(self, state: RequestState, step: int) -> None:
        """Ranks do not depend on who was served."""

    def candidates(self, step: int) -> Iterator[RequestState]:
        return (entry[2] for entry in self._entries)

    def check(self) -> None:
        for rank, _, state in self._entries:
            if rank != self._rank(state):
                raise InvariantError(
                    f"request {state.id!r} is ranked {rank}, its rank is {self._rank(state)}"
                )


def make_order(config: SchedulerConfig, page_size: int) -> Order:
    """A new, empty order as `config.scheduling_policy` names it."""
    aging, seed = config.aging_tokens_per_step, config.seed
    match config.scheduling_policy:
        case "fcfs" | "priority":
            return RankOrder(lambda state: state.seq)
        case "lpm":
            return RankOrder(lambda state: state.arrival_step * aging - state.matched_pages * page_size)
        case "lof":
            return RankOrder(lambda state: state.arrival_step * aging - state.request.max_new_tokens)
        case "random":
            return RankOrder(lambda state: Random(f"{seed}/{state.seq}").random())
        case "dfs-weight":
            return DepthFirstOrder(config.max_wait_steps)
