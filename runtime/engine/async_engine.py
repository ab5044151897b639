"""The engine in a process of its own, driven from an event loop."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from trunkline.radix import DEFAULT_NAMESPACE, Namespace
from trunkline.radix.tokens import Int32Array
from trunkline.runtime.errors import EngineDeadError, EngineStartError, RequestError
from trunkline.runtime.sampling import SamplingParams

from .config import EngineConfig
from .outputs import RequestOutput, merge
from .stats import EngineInfo, EngineStats
from .wire import (
    Abort,
    Call,
    Failed,
    Outputs,
    Ready,
    Refused,
    Reply,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
)
from .worker import run_worker

__all__ = ["AsyncEngine", "RequestStream"]


class RequestStream:
    """The output of one request as an async iterator; leaving it early (`aclose`, `async with`) aborts the request.

    A reader slower than the model finds what it missed merged into one output a choice, so what is kept is bounded
    by the answers themselves.

    Raises, while iterating, RequestError for a request that was refused and EngineDeadError when the engine died.
    """

    def __init__(self, engine: AsyncEngine, id: str) -> None:
        self.id = id
        self._engine = engine
        self._pending: dict[int, RequestOutput] = {}
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self._finished = False

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._finished:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._pending.pop(next(iter(self._pending)))

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Aborts the request if it still runs."""
        if not self._finished:
            self._finished = True
            await self._engine.abort(self.id)

    def put(self, output: RequestOutput) -> None:
        """Called by the engine's reader with the next output."""
        earlier = self._pending.get(output.index)
        self._pending[output.index] = merge(earlier, output) if earlier is not None else output
        self._finished = self._finished or output.last
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Called by the engine's reader when nothing more will come."""
        self._error = error
        self._finished = True
        self._news.set()


class AsyncEngine:
    """An `Engine` in its own process; made by `start`, ended by `stop`."""

    def __init__(self, process: multiprocessing.process.BaseProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._prefix = os.urandom(4).hex()
        self._numbers = itertools.count(1)
        self._streams: dict[str, RequestStream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._stats = EngineStats()
        self._outbox: asyncio.Queue[ToEngine] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._dead: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self.info: EngineInfo
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_exit)

    @classmethod
    async def start(cls, config: EngineConfig, *, ready_timeout: float = 600.0) -> AsyncEngine:
        """Starts the process and waits until its model is loaded.

        Raises EngineStartError with the engine's own words, or when it died or took longer than `ready_timeout` seconds.
        """
        folder = Path(tempfile.mkdtemp(prefix="trunkline-"))
        endpoint = f"ipc://{folder}/engine"
        process = multiprocessing.get_context("spawn").Process(
            target=run_worker, args=(config, endpoint, os.getpid()), name="trunkline-engine"
        )
        process.start()
        engine = cls(process, folder)
        engine._socket.bind(endpoint)
        try:
            engine.info = await engine._wait_ready(ready_timeout)
        except BaseException:
            await engine.stop()
            raise
        engine._tasks = [asyncio.create_task(engine._read()), asyncio.create_task(engine._write())]
        return engine

    def submit(
        self,
        prompt: Int32Array,
        params: SamplingParams,
        *,
        priority: int = 0,
        namespace: Namespace = DEFAULT_NAMESPACE,
        explain: bool = False,
    ) -> RequestStream:
        """Queues a request and returns the stream of its output; raises EngineDeadError where there is no engine."""
        if not self.alive:
            raise EngineDeadError("the engine is not running")
        stream = RequestStream(self, f"{self._prefix}-{next(self._numbers)}")
        self._streams[stream.id] = stream
        self._idle.clear()
        tokens = np.ascontiguousarray(prompt, dtype=np.int32).tobytes()
        self._outbox.put_nowait(Submit(stream.id, tokens, params, priority, namespace, explain))
        return stream

    async def abort(self, id: str) -> bool:
        """Ends a request; false where no request with this id runs."""
        stream = self._streams.pop(id, None)
        if stream is None:
            return False
        stream.fail(EngineDeadError("the request was aborted"))
        self._settle()
        if self.alive:
            self._outbox.put_nowait(Abort(id))
        return True

    @property
    def num_streams(self) -> int:
        """Requests that are queued or run."""
        return len(self._streams)

    @property
    def running_ids(self) -> frozenset[str]:
        """The ids of requests that are queued or run."""
        return frozenset(self._streams)

    @property
    def pid(self) -> int:
        """The engine's process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the process has ended or `stop` was called."""
        return not self._dead.done() and not self._stopping

    def stats(self) -> EngineStats:
        """The engine as it was after its last step."""
        return self._stats

    async def wait_dead(self) -> int:
        """Returns the exit code once the process has ended."""
        return await asyncio.shield(self._dead)

    async def flush_cache(self, namespace: Namespace | None = None) -> int:
        """Drops everything cached that no request holds, in one namespace or all; returns how many pages."""
        return int(await self._call("flush_cache", namespace=namespace))

    async def cache_tree(self) -> dict[str, Any]:
        """See `Engine.cache_tree`."""
        tree: dict[str, Any] = await self._call("cache_tree")
        return tree

    async def check(self) -> None:
        """Recomputes every invariant in the engine's process; raises RuntimeError with the state of a broken one."""
        await self._call("check")

    async def drain(self, timeout: float) -> bool:
        """Waits until no request is left; false when `timeout` seconds were not enough."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Ends the process and fails what still runs. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._dead.done():
            self._process.terminate()
            await asyncio.wait_for(asyncio.shield(self._dead), 10)
        self._context.destroy(linger=0)
        for leftover in self._folder.iterdir():
            leftover.unlink()
        self._folder.rmdir()

    async def _wait_ready(self, timeout: float) -> EngineInfo:
        received = asyncio.ensure_future(self._socket.recv())
        try:
            either: set[asyncio.Future[Any]] = {received, self._dead}
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not received.done():
                ending = (
                    f"died with exit code {self._dead.result()}"
                    if self._dead.done()
                    else f"took over {timeout:g} s"
                )
                raise EngineStartError(f"the engine {ending} while it loaded the model")
            message = decode_from_engine(received.result())
        finally:
            received.cancel()
        if isinstance(message, Failed):
            raise EngineStartError(message.message)
        assert isinstance(message, Ready), message
        self._stats = message.stats
        return message.info

    async def _call(self, name: str, **arguments: Any) -> Any:
        if not self.alive:
            raise EngineDeadError("the engine is not running")
        number = next(self._numbers)
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait(Call(number, name, arguments))
        return await future

    async def _write(self) -> None:
        while True:
            await self._socket.send(encode(await self._outbox.get()))

    async def _read(self) -> None:
        while True:
            message = decode_from_engine(await self._socket.recv())
            match message:
                case Outputs(outputs, stats, at):
                    self._stats = stats
                    for output in outputs:
                        self._deliver(msgspec.structs.replace(output, at=at))
                case Refused(id, text, param):
                    stream = self._streams.pop(id, None)
                    if stream is not None:
                        stream.fail(RequestError(text, param))
                case Reply(number, value, stats, error):
                    self._stats = stats
                    future = self._calls.pop(number)
                    if not future.done():
                        if error is None:
                            future.set_result(value)
                        else:
                            future.set_exception(RuntimeError(error))
            self._settle()

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.id)
        if stream is None:
            return
        if output.last:
            del self._streams[output.id]
        stream.put(output)

    def _settle(self) -> None:
        if not self._streams:
            self._idle.set()

    def _on_exit(self) -> None:
        """The process has ended: whoever waits for it hears of it now."""
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        code = self._process.exitcode
        if not self._dead.done():
            self._dead.set_result(code if code is not None else -1)
        error = EngineDeadError(f"the engine's process ended with exit code {code}")
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()
        self._settle()
