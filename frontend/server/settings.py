"""Everything the HTTP server can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trunkline.errors import ConfigError

__all__ = ["ServerSettings"]

MIN_BODY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of the server; those of the engine are an `EngineConfig`.

    host, port: where to listen; loopback by default.
    served_model_names: names under which requests may ask for the model; its own name if empty.
    accept_any_model: answer whatever model name a request states.
    api_keys: requests must carry one of them as a bearer token; none are needed if empty.
    namespace_per_key: each API key has a prefix cache of its own; nothing, timing included, crosses keys.
    max_queue: requests that may wait for their first token; more are answered 503.
    max_body_bytes: the largest request body, in bytes.
    body_timeout: seconds in which a request's body must have arrived.
    slow_reader_timeout: seconds for which a reader may leave a stream's buffer full; None waits for ever.
    drain_timeout: seconds that running requests get to end after SIGTERM.
    strict_fields: refuse unknown fields of a request, instead of ignoring them with a warning in the log.
    clamp_max_tokens: cut a max_tokens that doesn't fit, and say so in the answer, instead of refusing it.
    request_log: a file to which each finished choice is appended, for `trunkline analyze`; hashes, not text.
    request_log_tokens: write the token ids too, which are the text.
    cors_origins: origins whose pages may call the server; none by default.

    Raises ConfigError when a value is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    accept_any_model: bool = False
    api_keys: tuple[str, ...] = ()
    namespace_per_key: bool = False
    max_queue: int = 256
    max_body_bytes: int = 16 * 2**20
    body_timeout: float = 30.0
    slow_reader_timeout: float | None = None
    drain_timeout: float = 30.0
    strict_fields: bool = False
    clamp_max_tokens: bool = False
    request_log: Path | None = None
    request_log_tokens: bool = False
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not in [0, 65535]")
        if self.request_log_tokens and self.request_log is None:
            raise ConfigError("request_log_tokens is set, but there is no request_log to write them to")
        if self.max_queue < 1:
            raise ConfigError(f"max_queue {self.max_queue} is below 1")
        if self.max_body_bytes < MIN_BODY_BYTES:
            raise ConfigError(f"max_body_bytes {self.max_body_bytes} is below {MIN_BODY_BYTES}")
        for name in ("body_timeout", "slow_reader_timeout", "drain_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} {value} is not a positive number of seconds")
        for name in ("served_model_names", "api_keys", "cors_origins"):
            if any(not text for text in getattr(self, name)):
                raise ConfigError(f"{name} holds an empty string")
        if any(not key.isascii() or not key.isprintable() or " " in key for key in self.api_keys):
            raise ConfigError("api_keys must be printable ASCII without blanks")
        if self.namespace_per_key and not self.api_keys:
            raise ConfigError("namespace_per_key needs api_keys")
