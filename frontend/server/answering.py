"""From a checked request to its answer, streamed or whole."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.outputs import RequestOutput
from trunkline.runtime.errors import RequestError
from trunkline.runtime.sampling import SamplingParams

from .answers import Usage, Vendor
from .errors import ApiError, from_exception, invalid
from .explanations import without_others
from .generation import Generation, GenerationOptions
from .ledger import Ledger
from .limits import Place
from .record import record_of
from .schemas import GenerationRequest
from .service import Service
from .streaming import DONE, EventStream, event, unless_gone
from .tally import Tally

__all__ = ["Layout", "Prepared", "answer"]


class Layout(Protocol):
    """How the outputs of one request look on the wire; one for each kind of completion."""

    id: str
    vendor: Vendor | None

    def chunks(self, choice: int, output: RequestOutput) -> list[Any]:
        """The events of a stream that an output makes: exactly one of a choice's has a finish reason."""

    def usage_chunk(self, usage: Usage) -> Any:
        """The event with the usage."""

    def whole(self, outputs: Sequence[Sequence[RequestOutput]], usage: Usage) -> Any:
        """The answer to a request that is no stream, from the outputs of each choice."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a request comes down to: token ids, how to go on from them, and how to write what comes.

    `shows_output` is false where only the prompt is wanted back. `sealed` is a chat's rendered text.
    """

    prompts: list[Int32Array]
    params: SamplingParams
    layout: Layout
    shows_output: bool = True
    sealed: str | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """A request whose first output has come."""

    generation: Generation
    layout: Layout
    tally: Tally
    ledger: Ledger
    first: tuple[int, RequestOutput]

    async def outputs(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        self._note(*self.first)
        yield self.first
        async for choice, output in self.generation:
            self._note(choice, output)
            yield choice, output

    def _note(self, choice: int, output: RequestOutput) -> None:
        self.tally.add(choice, output)
        self.ledger.add(choice, output)


async def answer(
    service: Service, request: Request, body: GenerationRequest, prepare: Callable[[], Awaitable[Prepared]]
) -> Response:
    """The answer to a request; what goes wrong before the first token has a status of its own.

    Leaves nothing running when it ends, by whatever way; a client that leaves is noticed at any time.
    Raises ApiError and what the engine raises.
    """
    record = record_of(request)
    async with AsyncExitStack() as stack:
        place = stack.enter_context(service.room.enter())
        begun = _begin(service, request, body, prepare, place, stack)
        try:
            running = await unless_gone(request.receive, begun)
        except RequestError as error:
            raise await _in_its_words(body, error) from None
        if body.stream:
            events = _events(running, body.include_usage)
            return EventStream(events, stack.pop_all().aclose, record, service.settings.slow_reader_timeout)
        whole = await unless_gone(request.receive, _whole(running))
        return Response(msgspec.json.encode(whole), media_type="application/json")
    raise AssertionError("unreachable")


async def _begin(
    service: Service,
    request: Request,
    body: GenerationRequest,
    prepare: Callable[[], Awaitable[Prepared]],
    place: Place,
    stack: AsyncExitStack,
) -> _Running:
    """Tokenizes, submits, and waits for the first output."""
    prepared = await prepare()
    params, cut = service.fitted(prepared.params, prepared.prompts)
    tally = Tally(
        [len(prompt) for prompt in prepared.prompts],
        params.n,
        record_of(request),
        service.metrics,
        place,
        counts_output=prepared.shows_output,
    )
    namespace = service.namespace(request, body.cache_salt)
    options = GenerationOptions(params, body.priority, namespace, body.wants_explanation)
    ledger = Ledger(
        service.book,
        prepared.layout.id,
        prepared.prompts,
        params.n,
        namespace,
        body.priority,
        service.labels(request, body),
        prepared.sealed,
    )
    stack.callback(ledger.close)
    generation = await stack.enter_async_context(Generation(service.engine, prepared.prompts, options))
    stack.enter_context(service.listed(generation))
    first = await anext(generation)
    explanation = first[1].explanation
    if explanation is not None:
        explanation = without_others(explanation)
        service.explanations.put(prepared.layout.id, service.tenant(request), explanation)
    if explanation is not None or cut is not None:
        prepared.layout.vendor = Vendor(explanation, cut)
    return _Running(generation, prepared.layout, tally, ledger, first)


async def _in_its_words(body: GenerationRequest, error: RequestError) -> ApiError:
    """An error of the engine's, which says `constraint`, by the name of the request's own field."""
    if error.param != "constraint":
        return from_exception(error)
    name, message = await asyncio.to_thread(body.explained, str(error))
    return invalid(message, name, "invalid_value")


async def _events(running: _Running, include_usage: bool) -> AsyncIterator[bytes]:
    async for choice, output in running.outputs():
        for chunk in running.layout.chunks(choice, output):
            yield event(msgspec.json.encode(chunk))
    if include_usage:
        yield event(msgspec.json.encode(running.layout.usage_chunk(running.tally.usage())))
    yield DONE


async def _whole(running: _Running) -> Any:
    outputs: defaultdict[int, list[RequestOutput]] = defaultdict(list)
    async for choice, output in running.outputs():
        outputs[choice].append(output)
    return running.layout.whole([outputs[choice] for choice in sorted(outputs)], running.tally.usage())
