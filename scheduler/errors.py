"""Exceptions of the scheduler room, all rooted in `TrunklineError`."""

from trunkline.errors import TrunklineError


class SchedulerError(TrunklineError):
    """Base of everything the scheduler raises on purpose."""


class InvalidRequestError(SchedulerError, ValueError):
    """A request that cannot be served as it is written; names the request, the field and its value."""


class DuplicateRequestError(InvalidRequestError):
    """A request whose id belongs to another request that is still alive."""


class RequestTooLargeError(InvalidRequestError):
    """A request that could never fit in the page pool, however empty the pool is.

    `needed_tokens` and `pool_tokens` carry the two numbers of the message.
    """

    def __init__(self, request_id: str, needed_tokens: int, pool_tokens: int, detail: str) -> None:
        super().__init__(
            f"request {request_id!r} needs {needed_tokens} tokens of KV memory ({detail}), "
            f"the pool holds {pool_tokens}"
        )
        self.needed_tokens = needed_tokens
        self.pool_tokens = pool_tokens


class TransitionError(SchedulerError):
    """A change of status that a request's life does not have; names the request, from and to."""


class PlanError(SchedulerError):
    """`schedule` and `update` called out of turn, or a result that does not answer its plan."""


class InvariantError(SchedulerError):
    """`Scheduler.check()` found state that contradicts itself; the message says which."""
