"""Who waits to be looked at: priority classes, preempted requests at their head, a policy inside."""

from collections.abc import Iterator

from sortedcontainers import SortedDict

from .config import SchedulerConfig
from .errors import InvariantError
from .fair_share import FairOrder, ServedTokens
from .policy import Order, make_order
from .request import Status
from .state import RequestState


class _PriorityClass:
    """Requests of one priority."""

    def __init__(self, order: Order) -> None:
        self.preempted: SortedDict = SortedDict()
        self.order = order

    def __len__(self) -> int:
        return len(self.preempted) + len(self.order)


class WaitingQueue:
    """Waiting and preempted requests in the order in which they are looked at.

    A higher priority goes first under every policy; in a class preempted requests go first, in arrival order,
    then come the others as the policy (and the fair share between namespaces) wants. All O(log n) or better.
    """

    def __init__(self, config: SchedulerConfig, page_size: int, served: ServedTokens) -> None:
        self._config = config
        self._page_size = page_size
        self._served = served
        self._classes: SortedDict = SortedDict()
        self._members: dict[int, RequestState] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, state: RequestState) -> bool:
        return state.seq in self._members

    def add(self, state: RequestState) -> None:
        """Let a request wait; its status says where."""
        self._members[state.seq] = state
        priority_class = self._class_of(state)
        if state.status is Status.PREEMPTED:
            priority_class.preempted[state.seq] = state
        else:
            priority_class.order.add(state)

    def remove(self, state: RequestState) -> None:
        """Take a request out, before its status changes."""
        del self._members[state.seq]
        priority_class = self._class_of(state)
        if state.status is Status.PREEMPTED:
            del priority_class.preempted[state.seq]
        else:
            priority_class.order.remove(state)
        if not len(priority_class):
            del self._classes[-state.request.priority]

    def rescore(self, state: RequestState) -> None:
        """What is cached of a waiting request's prompt has changed."""
        if state.status is Status.WAITING:
            self._class_of(state).order.rescore(state)

    def serving(self, state: RequestState, step: int) -> None:
        """A request is about to be admitted."""
        if state.status is Status.WAITING:
            self._class_of(state).order.serving(state, step)

    def candidates(self, step: int) -> Iterator[RequestState]:
        """Everybody here, first choice first; made afresh at each call, ends with the next change."""
        for priority_class in self._classes.values():
            yield from priority_class.preempted.values()
            yield from priority_class.order.candidates(step)

    def check(self, step: int) -> None:
        """Raise `InvariantError` unless the order lists every member exactly once."""
        for priority_class in self._classes.values():
            priority_class.order.check()
        listed = sorted(state.seq for state in self.candidates(step))
        if listed != sorted(self._members):
            raise InvariantError(f"the queue has {sorted(self._members)}, its order lists {listed}")

    def _class_of(self, state: RequestState) -> _PriorityClass:
        key = -state.request.priority
        found: _PriorityClass | None = self._classes.get(key)
        if found is None:
            found = self._classes[key] = _PriorityClass(self._new_order())
        return found

    def _new_order(self) -> Order:
        def make() -> Order:
            return make_order(self._config, self._page_size)

        quantum = self._config.fair_share_quantum
        return make() if quantum is None else FairOrder(quantum, self._served, make)
