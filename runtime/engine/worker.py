"""The engine's own process: commands in, outputs out, a step whenever there is work."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import zmq

from trunkline.errors import TrunklineError
from trunkline.runtime.errors import RequestError

from .config import EngineConfig
from .engine import Engine
from .stats import EngineInfo
from .wire import (
    Abort,
    Call,
    Failed,
    FromEngine,
    Outputs,
    Ready,
    Refused,
    Reply,
    Submit,
    decode_to_engine,
    encode,
)

__all__ = ["run_worker"]

logger = logging.getLogger(__name__)

# How long an idle worker sleeps before it looks whether its parent still lives.
IDLE_POLL_MS = 500
# How long it sleeps while a grammar compiles, which nothing but a look can tell it of.
COMPILING_POLL_MS = 2
# How long a worker puts memory behind pages before it is ready; it goes on when it is idle.
BACKING_SECONDS = 1.5


def run_worker(config: EngineConfig, endpoint: str, parent: int) -> None:
    """Loads the model, says so, and serves until the parent closes or dies. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.linger = 1000
        socket.set_hwm(0)
        socket.connect(endpoint)
        try:
            engine = Engine(config)
        except TrunklineError as error:
            socket.send(encode(Failed(str(error))))
            return
        Worker(engine, socket, parent).serve()


class Worker:
    """Serves one engine over one socket.

    A request whose grammar is new is queued when a thread has compiled it, so that the others' steps go on.
    """

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes], parent: int) -> None:
        self._engine = engine
        self._socket = socket
        self._parent = parent
        self._compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trunkline-compiler")
        self._compiling: dict[str, tuple[Submit, Future[None]]] = {}
        self._operations: dict[str, Callable[..., Any]] = {
            "flush_cache": engine.flush_cache,
            "cache_tree": engine.cache_tree,
            "check": engine.check,
        }

    def serve(self) -> None:
        """Steps while there is work; backs pages with memory and sleeps on the socket while there is none."""
        deadline = time.monotonic() + BACKING_SECONDS
        while time.monotonic() < deadline and self._engine.back_pages():
            pass
        self._send(Ready(self._info(), self._engine.stats()))
        while os.getppid() == self._parent:
            self._receive(wait=not self._engine.has_work)
            self._submit_compiled()
            if self._engine.has_work:
                outputs = self._engine.step()
                self._send(Outputs(outputs, self._engine.stats(), time.time()))
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def _receive(self, wait: bool) -> None:
        """Carries out every command that has arrived; may wait for one, with memory for pages as a pastime."""
        while wait and not self._compiling and not self._socket.poll(0) and self._engine.back_pages():
            pass
        if wait and not self._socket.poll(COMPILING_POLL_MS if self._compiling else IDLE_POLL_MS):
            return
        while self._socket.poll(0):
            message = decode_to_engine(self._socket.recv())
            match message:
                case Submit():
                    self._take(message)
                case Abort(id):
                    if id in self._compiling:
                        self._compiling.pop(id)[1].cancel()
                    self._engine.abort(id)
                    self._send(Outputs([], self._engine.stats()))
                case Call():
                    self._call(message)

    def _take(self, message: Submit) -> None:
        """Queues a request, or has its grammar compiled first."""
        grammars, constraint = self._engine.runner.grammars, message.params.constraint
        if constraint is None or grammars.knows(constraint):
            self._submit(message)
        else:
            self._compiling[message.id] = message, self._compiler.submit(grammars.check, constraint)

    def _submit_compiled(self) -> None:
        for id, (message, compiled) in list(self._compiling.items()):
            if compiled.done():
                del self._compiling[id]
                self._submit(message, compiled)

    def _submit(self, message: Submit, compiled: Future[None] | None = None) -> None:
        try:
            if compiled is not None:
                compiled.result()
            self._engine.add_request(
                np.frombuffer(message.prompt, dtype=np.int32),
                message.params,
                id=message.id,
                priority=message.priority,
                namespace=message.namespace,
                explain=message.explain,
            )
        except RequestError as error:
            self._send(Refused(message.id, str(error), error.param))
        except Exception:
            logger.exception("request %s could not be queued", message.id)
            self._send(Refused(message.id, "the request could not be queued", None))

    def _call(self, message: Call) -> None:
        try:
            value = self._operations[message.name](**message.arguments)
        except Exception as error:
            logger.exception("%s failed", message.name)
            self._send(Reply(message.number, None, self._engine.stats(), str(error) or type(error).__name__))
        else:
            self._send(Reply(message.number, value, self._engine.stats()))

    def _send(self, message: FromEngine) -> None:
        self._socket.send(encode(message))

    def _info(self) -> EngineInfo:
        engine = self._engine
        return EngineInfo(
            model_name=engine.model_name,
            max_model_len=engine.max_model_len,
            vocab_size=engine.vocab_size,
            page_size=engine.cache.page_size,
            num_pages=engine.cache.pool.num_pages,
            dtype=str(engine.runner.model.dtype).removeprefix("torch."),
            backend=engine.backend_name,
        )
