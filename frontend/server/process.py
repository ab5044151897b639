"""The server's process: start, signals, drain, and the end of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from trunkline.errors import ConfigError
from trunkline.frontend.analyze.request_log import RequestLog
from trunkline.runtime.engine.async_engine import AsyncEngine
from trunkline.runtime.engine.config import EngineConfig
from trunkline.runtime.engine.stats import EngineInfo
from trunkline.runtime.loading import load_tokenizer

from .app import create_app
from .errors import shutting_down
from .service import Service
from .settings import ServerSettings

__all__ = ["run_server"]

logger = logging.getLogger(__name__)

EXIT_ENGINE_DIED = 1
# Room for the longest header a client may send, so that it is answered in our own words.
MAX_HEADER_BYTES = 256 * 1024
# What uvicorn waits beyond our own drain, for the last bytes to be written.
WRITE_GRACE = 5


def run_server(settings: ServerSettings, config: EngineConfig, listener: socket.socket) -> int:
    """Serves on a bound socket until a signal or the end of the engine; returns the exit code.

    Raises what the tokenizer and the engine raise when they can't be loaded.
    """
    return asyncio.run(_Process(settings, listener).serve(config))


class _Server(uvicorn.Server):
    """uvicorn, but signals begin our own drain; a second one ends it."""

    def __init__(self, config: uvicorn.Config, on_signal: asyncio.Event) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        self.force_exit = self._on_signal.is_set()
        self._on_signal.set()
        self.should_exit = True


class _Process:
    """One run of the server."""

    def __init__(self, settings: ServerSettings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._exit_code = 0

    async def serve(self, config: EngineConfig) -> int:
        """Loads, serves, drains; returns the exit code."""
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        engine = await AsyncEngine.start(config)
        log: RequestLog | None = None
        try:
            log = self._open_log(engine.info, config)
            app = create_app(engine, tokenizer, self._settings, log)
            signalled = asyncio.Event()
            server = _Server(
                uvicorn.Config(
                    app,
                    http="h11",
                    ws="none",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                    timeout_graceful_shutdown=int(self._settings.drain_timeout) + WRITE_GRACE,
                ),
                signalled,
            )
            service: Service = app.state.service
            watchers = (
                asyncio.create_task(self._drain(engine, service, signalled)),
                asyncio.create_task(self._watch(engine, service, server)),
            )
            self._announce(service)
            await server.serve(sockets=[self._listener])
            for watcher in watchers:
                watcher.cancel()
            service.encoder.close()
        finally:
            await engine.stop()
            if log is not None:
                log.close()
        return self._exit_code

    def _open_log(self, info: EngineInfo, config: EngineConfig) -> RequestLog | None:
        if self._settings.request_log is None:
            return None
        try:
            return RequestLog(
                self._settings.request_log,
                page_size=info.page_size,
                kv_tokens=info.num_pages * info.page_size,
                eviction_policy=config.radix.eviction_policy,
                model=info.model_name,
                with_tokens=self._settings.request_log_tokens,
            )
        except OSError as error:
            raise ConfigError(f"request_log {self._settings.request_log}: {error.strerror}") from None

    def _announce(self, service: Service) -> None:
        self._listener.listen()  # whoever reads the address may connect at once
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        info = service.info
        logger.info(
            "%s (%s, %s attention, %d pages of %d tokens) at http://%s:%d/",
            *(service.names[0], info.dtype, info.backend, info.num_pages, info.page_size, shown, port),
        )
        question = {
            "model": service.names[0],
            "messages": [{"role": "user", "content": "Name three rivers."}],
        }
        key = " -H 'Authorization: Bearer YOUR_KEY'" if self._settings.api_keys else ""
        logger.info(
            "try: curl http://%s:%d/v1/chat/completions -H 'Content-Type: application/json'%s -d '%s'",
            *(shown, port, key, json.dumps(question)),
        )
        logger.info("a page to chat on and to watch the cache: http://%s:%d/", shown, port)

    async def _drain(self, engine: AsyncEngine, service: Service, signalled: asyncio.Event) -> None:
        """After a signal: nothing new, and the drain's time for what runs; what is left then is cut off."""
        await signalled.wait()
        service.room.close(shutting_down())
        logger.info(
            "draining %d requests, at most %g s", len(service.generations), self._settings.drain_timeout
        )
        if not await engine.drain(self._settings.drain_timeout):
            logger.warning("cutting off %d requests", len(service.generations))
            service.cut_all(shutting_down())

    async def _watch(self, engine: AsyncEngine, service: Service, server: uvicorn.Server) -> None:
        """When the engine's process dies its requests are answered with errors, and the server goes too."""
        code = await engine.wait_dead()
        logger.critical("the engine's process ended with exit code %d; leaving", code)
        self._exit_code = EXIT_ENGINE_DIED
        service.room.close(shutting_down())
        server.should_exit = True
