"""`POST /v1/completions`, and `POST /v1/embeddings`, which is refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.outputs import RequestOutput

from .answering import Prepared, answer
from .answers import Completion, CompletionChoice, CompletionLogprobs, Usage, Vendor
from .errors import invalid, not_supported
from .logprobs import CompletionScores, joined, visible_logprobs
from .openapi import answers
from .record import record_of
from .schemas import CompletionRequest, EmbeddingRequest
from .service import Service

__all__ = ["completion_router"]


def completion_router(service: Service, router: APIRouter) -> None:
    """Adds the routes to `router`."""

    @router.post("/v1/completions", responses=answers(Completion, stream=Completion))
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continues one prompt or several; `stream` sends the text as it is made."""
        service.check_model(body.model)
        service.check_unknown(body)
        if body.wants_explanation and len(body.prompt) > 1:
            raise invalid("trunkline.cache is only supported with one prompt", "trunkline.cache")

        async def prepare() -> Prepared:
            prompts = [
                await service.encoder.prompt(
                    prompt, add_special=body.add_special_tokens, allow_special=body.allow_special_tokens
                )
                for prompt in body.prompt
            ]
            params = body.sampling(
                max_tokens=1 if body.max_tokens == 0 else body.max_tokens,
                logprobs=body.logprobs,
                prompt_logprobs=body.logprobs if body.echo else None,
                prompt_logprobs_start=body.prompt_logprobs_start or 0,
            )
            echoes = [await _echo(service, *pair) for pair in zip(body.prompt, prompts, strict=True)]
            layout = CompletionLayout(record_of(request).new_id("cmpl"), body, service, echoes)
            return Prepared(prompts, params, layout, shows_output=body.max_tokens != 0)

        return await answer(service, request, body, prepare)

    @router.post("/v1/embeddings", responses=answers(None))
    async def create_embedding(body: EmbeddingRequest) -> Response:
        """Always refused: there are no embeddings here."""
        raise not_supported("embeddings are not supported")


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt to give back before its continuation."""

    text: str
    ids: Int32Array


class CompletionLayout:
    """Text completions on the wire, streamed or not."""

    def __init__(self, id: str, body: CompletionRequest, service: Service, echoes: list[Echo]) -> None:
        self.id = id
        self.vendor: Vendor | None = None
        self._created = int(time.time())
        self._body = body
        self._n = body.n or 1
        self._usage = None if body.include_usage else msgspec.UNSET
        self._tokenizer = service.tokenizer
        self._echoes = echoes
        self._scores: dict[int, CompletionScores] = {}

    def chunks(self, choice: int, output: RequestOutput) -> list[Completion]:
        parts = self._parts(choice, output)
        chunks = [self._chunk(CompletionChoice(choice, text, None, scored)) for text, scored in parts]
        if output.finish_reason is not None:
            chunks.append(self._chunk(CompletionChoice(choice, "", self._reason(output))))
        return chunks

    def usage_chunk(self, usage: Usage) -> Completion:
        return Completion(self.id, self._created, self._body.model, [], usage)

    def whole(self, outputs: Sequence[Sequence[RequestOutput]], usage: Usage) -> Completion:
        choices = []
        for choice, stretch in enumerate(outputs):
            parts = [part for output in stretch for part in self._parts(choice, output)]
            scored = (
                joined([scored for _, scored in parts if scored]) if self._body.logprobs is not None else None
            )
            text = "".join(text for text, _ in parts)
            choices.append(CompletionChoice(choice, text, self._reason(stretch[-1]), scored))
        return Completion(
            self.id, self._created, self._body.model, choices, usage, trunkline=self.vendor or msgspec.UNSET
        )

    def _parts(self, choice: int, output: RequestOutput) -> list[tuple[str, CompletionLogprobs | None]]:
        """The texts an output adds to a choice, with their scores; the echo comes first."""
        parts: list[tuple[str, CompletionLogprobs | None]] = []
        num_top = self._body.logprobs
        first = choice not in self._scores
        scores = self._scores.setdefault(choice, CompletionScores(self._tokenizer, num_top or 0))
        if first and self._body.echo:
            echo = self._echoes[choice // self._n]
            known = output.prompt_logprobs or ()
            scored = (*(None,) * (len(echo.ids) - len(known)), *known)
            parts.append((echo.text, None if num_top is None else scores.prompt(echo.ids.tolist(), scored)))
        if self._body.max_tokens != 0:
            entries = visible_logprobs(output)
            if output.text or output.finish_reason is None or (entries and num_top is not None):
                parts.append((output.text, None if num_top is None else scores.add(entries)))
        return parts

    def _reason(self, output: RequestOutput) -> str:
        return "length" if self._body.max_tokens == 0 else output.finish_reason or "length"

    def _chunk(self, choice: CompletionChoice) -> Completion:
        vendor, self.vendor = self.vendor, None  # the first chunk alone carries it
        return Completion(
            self.id, self._created, self._body.model, [choice], self._usage, trunkline=vendor or msgspec.UNSET
        )


async def _echo(service: Service, given: str | list[int], ids: Int32Array) -> Echo:
    """The prompt as it was given; ids as the text they stand for."""
    if isinstance(given, str):
        return Echo(given, ids)
    return Echo(await service.encoder.decode(ids.tolist(), skip_special=False), ids)
