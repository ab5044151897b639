"""`trunkline serve`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trunkline.errors import ConfigError
from trunkline.frontend.options import Quantization, read_engine_config

from .listening import bound_socket
from .settings import ServerSettings

if TYPE_CHECKING:
    from trunkline.runtime.engine.config import EngineConfig

__all__ = ["serve"]

KEYS_VARIABLE = "TRUNKLINE_API_KEYS"
LOG_LEVELS = ("debug", "info", "warning", "error")
# What a server assumes where its file says nothing: streams don't halt for long prompts, evicted pages are remembered.
_DEFAULTS: dict[str, dict[str, Any]] = {"radix": {"explain": True}, "scheduler": {"target_itl_ms": 300.0}}

Model = Annotated[
    str | None,
    typer.Option(help="Model directory, .gguf file or hub id; the embedded SmolLM2-135M if absent."),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes one that is free.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file with engine settings.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and answer together.")]
KvDtype = Annotated[
    str | None, typer.Option(help="auto, as the weights; int8: half the KV cache's memory, on CPUs.")
]
KvTokens = Annotated[int | None, typer.Option(help="Tokens the KV cache holds; a share of memory if absent.")]
Names = Annotated[list[str] | None, typer.Option(help="Name of the model in requests; may be repeated.")]
AnyModel = Annotated[bool, typer.Option("--accept-any-model", help="Answer whatever model a request names.")]
Keys = Annotated[
    list[str] | None,
    typer.Option(help=f"Key that requests must carry; may be repeated. Or {KEYS_VARIABLE}=one,two."),
]
KeyNamespaces = Annotated[
    bool, typer.Option("--namespace-per-key", help="A prefix cache of its own for each API key.")
]
MaxQueue = Annotated[int, typer.Option(help="Requests that may wait for their first token.")]
MaxBody = Annotated[int, typer.Option(help="Largest request body.")]
BodyTimeout = Annotated[float, typer.Option(help="Seconds in which a request's body must have arrived.")]
SlowReader = Annotated[
    float | None, typer.Option(help="Seconds after which a reader who takes nothing is cut off.")
]
DrainTimeout = Annotated[float, typer.Option(help="Seconds that running requests get after SIGTERM.")]
Strict = Annotated[bool, typer.Option("--strict-fields", help="Refuse unknown fields of requests.")]
Clamp = Annotated[bool, typer.Option("--clamp-max-tokens", help="Cut a max_tokens that doesn't fit.")]
RequestLogFile = Annotated[
    Path | None, typer.Option("--request-log", help="File for `trunkline analyze`: salted hashes, no text.")
]
LogTokens = Annotated[bool, typer.Option("--request-log-tokens", help="Log token ids too: the text.")]
Origins = Annotated[
    list[str] | None, typer.Option(help="Origin whose pages may call the server; may be repeated.")
]
LogLevel = Annotated[str, typer.Option(help=f"{', '.join(LOG_LEVELS)}.")]


def serve(
    model: Model = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    config: ConfigFile = None,
    dtype: Dtype = None,
    quantization: Quantization = None,
    max_model_len: MaxModelLen = None,
    kv_cache_dtype: KvDtype = None,
    kv_cache_tokens: KvTokens = None,
    served_model_name: Names = None,
    accept_any_model: AnyModel = False,
    api_key: Keys = None,
    namespace_per_key: KeyNamespaces = False,
    max_queue: MaxQueue = 256,
    max_body_bytes: MaxBody = 16 * 2**20,
    body_timeout: BodyTimeout = 30.0,
    slow_reader_timeout: SlowReader = None,
    drain_timeout: DrainTimeout = 30.0,
    strict_fields: Strict = False,
    clamp_max_tokens: Clamp = False,
    request_log: RequestLogFile = None,
    request_log_tokens: LogTokens = False,
    cors_origin: Origins = None,
    log_level: LogLevel = "info",
) -> None:
    """Serves a model over HTTP, in OpenAI's format."""
    settings = ServerSettings(
        host=host,
        port=port,
        served_model_names=tuple(served_model_name or ()),
        accept_any_model=accept_any_model,
        api_keys=tuple(api_key or _keys_from_environment()),
        namespace_per_key=namespace_per_key,
        max_queue=max_queue,
        max_body_bytes=max_body_bytes,
        body_timeout=body_timeout,
        slow_reader_timeout=slow_reader_timeout,
        drain_timeout=drain_timeout,
        strict_fields=strict_fields,
        clamp_max_tokens=clamp_max_tokens,
        request_log=request_log,
        request_log_tokens=request_log_tokens,
        cors_origins=tuple(cors_origin or ()),
    )
    typed = {
        "model": model,
        "dtype": dtype,
        "quantization": quantization,
        "max_model_len": max_model_len,
        "kv_cache_dtype": kv_cache_dtype,
        "kv_cache_tokens": kv_cache_tokens,
    }
    _run(settings, config, typed, log_level)


def _run(settings: ServerSettings, config: Path | None, typed: dict[str, Any], log_level: str) -> None:
    if log_level not in LOG_LEVELS:
        raise ConfigError(f"log_level {log_level!r} is none of {', '.join(LOG_LEVELS)}")
    with bound_socket(settings.host, settings.port) as listener:
        engine = engine_config(config, typed)
        try:
            from .logs import configure_logging
            from .process import run_server
        except ImportError as error:
            raise ConfigError(f"serve needs {error.name}: pip install 'trunkline[server]'") from None
        configure_logging(log_level)
        code = run_server(settings, engine, listener)
    if code:
        sys.exit(code)


def engine_config(path: Path | None, typed: dict[str, Any]) -> EngineConfig:
    """What the file says; what was typed goes before it."""
    base = read_engine_config(path, _DEFAULTS)
    return replace(base, **{name: value for name, value in typed.items() if value is not None})


def _keys_from_environment() -> list[str]:
    return [key for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key]
