"""The server's log on stderr: one line for each record, whatever a client sent."""

from __future__ import annotations

import logging
import re

__all__ = ["configure_logging"]

# C0 and C1 controls, and the marks that turn text around: none may reach a terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class _OneLine(logging.Formatter):
    """Escapes control characters of the message; a traceback keeps its lines, behind its message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", record.message)
        return super().formatMessage(record)


def configure_logging(level: str) -> None:
    """Sends the records of Trunkline and uvicorn to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("trunkline", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True  # `observe` writes a line for each request
