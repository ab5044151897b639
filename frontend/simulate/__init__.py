"""`trunkline simulate`: the scheduler and the cache on a machine that isn't here."""

from .command import simulate

__all__ = ["simulate"]
