"""The server's address."""

from __future__ import annotations

import socket

from trunkline.errors import ConfigError

__all__ = ["bound_socket"]


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket with its address that doesn't listen yet, so that it can be had before a model is loaded.

    Raises ConfigError for an address that doesn't exist or is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without its protocol asyncio would leave Nagle's algorithm on, and answers would take 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"host {host!r}, port {port}: {error.strerror or error}") from None
    return listener
