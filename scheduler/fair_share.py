"""Namespaces take turns: computed tokens are counted, the least served one that waits is next."""

from collections.abc import Callable, Iterator

from sortedcontainers import SortedList

from trunkline.radix.hashing import Namespace

from .errors import InvariantError
from .policy import Order
from .state import RequestState


class ServedTokens:
    """Computed tokens of every namespace that has requests; O(log namespaces) for each change.

    A namespace that comes back after a pause starts level with the least served one, so nobody saves up a
    share.
    """

    def __init__(self) -> None:
        self._served: dict[Namespace, int] = {}
        self._alive: dict[Namespace, int] = {}
        self._levels: SortedList = SortedList()

    def __getitem__(self, namespace: Namespace) -> int:
        return self._served[namespace]

    def enter(self, namespace: Namespace) -> None:
        """A request of this namespace was added."""
        alive = self._alive.get(namespace, 0)
        if alive == 0:
            level = self._levels[0][0] if self._levels else 0
            self._served[namespace] = max(self._served.get(namespace, 0), level)
            self._levels.add((self._served[namespace], namespace))
        self._alive[namespace] = alive + 1

    def leave(self, namespace: Namespace) -> None:
        """A request of this namespace ended."""
        self._alive[namespace] -= 1
        if self._alive[namespace] == 0:
            del self._alive[namespace]
            self._levels.remove((self._served[namespace], namespace))
            if not self._levels:
                self._served.clear()
            elif self._served[namespace] <= self._levels[0][0]:
                # Coming back, it would start at this level anyway.
                del self._served[namespace]

    def charge(self, namespace: Namespace, num_tokens: int) -> None:
        """Tokens of this namespace were computed."""
        self._levels.remove((self._served[namespace], namespace))
        self._served[namespace] += num_tokens
        self._levels.add((self._served[namespace], namespace))

    def least_first(self) -> Iterator[Namespace]:
        """Namespaces that have requests, least served first."""
        return (namespace for _, namespace in self._levels)


class FairOrder:
    """An order for each namespace, which take turns.

    The turn stays with a namespace until it has been served `quantum` tokens more than another that waits,
    so its requests run together and share prefixes. Between namespaces that always have requests waiting,
    what they were served differs by at most the quantum and what those already running still compute.
    Ideas: deficit round robin (Shreedhar and Varghese), token counters as in VTC (Sheng et al.).
    """

    def __init__(self, quantum: int, served: ServedTokens, make_order: Callable[[], Order]) -> None:
        self._quantum = quantum
        self._served = served
        self._make_order = make_order
        self._orders: dict[Namespace, Order] = {}
        self._turn: Namespace | None = None

    def __len__(self) -> int:
        return sum(len(order) for order in self._orders.values())

    def add(self, state: RequestState) -> None:
        namespace = state.request.namespace
        if namespace not in self._orders:
            self._orders[namespace] = self._make_order()
        self._orders[namespace].add(state)

    def remove(self, state: RequestState) -> None:
        order = self._orders[state.request.namespace]
        order.remove(state)
        if not len(order):
            del self._orders[state.request.namespace]

    def rescore(self, state: RequestState) -> None:
        self._orders[state.request.namespace].rescore(state)

    def serving(self, state: RequestState, step: int) -> None:
        self._turn = state.request.namespace
        self._orders[self._turn].serving(state, step)

    def candidates(self, step: int) -> Iterator[RequestState]:
        turn = self._turn
        waiting = (namespace for namespace in self._served.least_first() if namespace in self._orders)
        least = next(waiting, None)
        if least is None:
            return
        if turn in self._orders and self._served[turn] - self._served[least] <= self._quantum:
            yield from self._orders[turn].candidates(step)
        else:
            turn = None
        for namespace in (least, *waiting):
            if namespace != turn:
                yield from self._orders[namespace].candidates(step)

    def check(self) -> None:
        for namespace, order in self._orders.items():
            if not len(order):
                raise InvariantError(f"namespace {namespace} has an order in which nobody waits")
            order.check()
