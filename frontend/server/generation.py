"""From prompts to choices: what one HTTP request has running in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from trunkline.radix import Namespace
from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.async_engine import AsyncEngine, RequestStream
from trunkline.runtime.engine.outputs import RequestOutput
from trunkline.runtime.sampling import SamplingParams

from .errors import ApiError, engine_failed, shutting_down

__all__ = ["Generation", "GenerationOptions"]


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How the prompts of a request are to be continued, and from which part of the prefix cache."""

    params: SamplingParams
    priority: int
    namespace: Namespace
    explain: bool


class Generation:
    """The prompts of one HTTP request in the engine; their outputs come as one stream of (choice, output).

    Choice `p * n + i` is continuation i of prompt p. Used as an async context manager; leaving it aborts what
    still runs. Iterating raises what the engine raises, and ApiError for a choice that failed or was cut.
    """

    def __init__(
        self, engine: AsyncEngine, prompts: Sequence[Int32Array], options: GenerationOptions
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._options = options
        self._streams: list[RequestStream] = []
        self._pumps: list[asyncio.Task[None]] = []
        # One place: what a slow reader has not taken yet is merged in the engine's streams, so it is bounded.
        self._arrived: asyncio.Queue[tuple[int, RequestOutput] | Exception] = asyncio.Queue(maxsize=1)
        self._num_open = len(prompts) * options.params.n

    async def __aenter__(self) -> Generation:
        options = self._options
        try:
            for number, prompt in enumerate(self._prompts):
                stream = self._engine.submit(
                    prompt,
                    options.params,
                    priority=options.priority,
                    namespace=options.namespace,
                    explain=options.explain,
                )
                self._streams.append(stream)
                self._pumps.append(asyncio.create_task(self._pump(number * options.params.n, stream)))
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> tuple[int, RequestOutput]:
        if not self._num_open:
            raise StopAsyncIteration
        arrived = await self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        output = arrived[1]
        if output.finish_reason == "error":
            raise engine_failed(output.error or "the engine could not compute an answer")
        if output.finish_reason == "abort":
            raise shutting_down()
        if output.finish_reason is not None:
            self._num_open -= 1
        return arrived

    def cut(self, error: ApiError) -> None:
        """Ends the iteration with `error`, whatever still runs."""
        for pump in self._pumps:
            pump.cancel()
        while not self._arrived.empty():
            self._arrived.get_nowait()
        self._arrived.put_nowait(error)

    async def _pump(self, first_choice: int, stream: RequestStream) -> None:
        try:
            async for output in stream:
                await self._arrived.put((first_choice + output.index, output))
        except Exception as error:
            await self._arrived.put(error)

    async def _leave(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for stream in self._streams:
            await stream.aclose()
