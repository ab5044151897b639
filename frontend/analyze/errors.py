"""What can go wrong in an analysis."""

from trunkline.errors import TrunklineError


class AnalyzeError(TrunklineError, ValueError):
    """Base of the errors of `trunkline analyze`."""


class InputError(AnalyzeError):
    """An input that can't be analysed; names it, the line where there is one, and what is wrong."""


class MissingExtra(AnalyzeError, ImportError):
    """A package of the extra `analyze` isn't installed; says how to get it."""


class ServerError(AnalyzeError):
    """A live server did not answer as a Trunkline server does; names the address and the answer."""
