"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from trunkline.runtime.engine.outputs import RequestOutput
from trunkline.runtime.loading import Tokenizer

from .answering import Prepared, answer
from .answers import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    Usage,
    Vendor,
)
from .errors import invalid
from .logprobs import chat_logprobs, visible_logprobs
from .openapi import answers
from .record import record_of
from .schemas import ChatRequest
from .service import Service

__all__ = ["chat_router"]


def chat_router(service: Service, router: APIRouter) -> None:
    """Adds the route to `router`."""

    @router.post("/v1/chat/completions", responses=answers(ChatCompletion, stream=ChatChunk))
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answers a conversation; `stream` sends the answer as it is made."""
        service.check_model(body.model)
        service.check_unknown(body)
        _check_last(body)

        async def prepare() -> Prepared:
            prompt = await service.encoder.chat(
                body.messages,
                add_generation_prompt=not body.continue_final_message,
                continue_final=body.continue_final_message,
                namespace=service.namespace(request, body.cache_salt),
            )
            params = body.sampling(
                max_tokens=body.limit, logprobs=(body.top_logprobs or 0) if body.logprobs else None
            )
            layout = ChatLayout(record_of(request).new_id("chatcmpl"), body, service.tokenizer)
            return Prepared([prompt.ids], params, layout, sealed=prompt.sealed)

        return await answer(service, request, body, prepare)


class ChatLayout:
    """Chat completions on the wire: a message, or chunks that add to one."""

    def __init__(self, id: str, body: ChatRequest, tokenizer: Tokenizer) -> None:
        self.id = id
        self.vendor: Vendor | None = None
        self._created = int(time.time())
        self._model = body.model
        self._logprobs = bool(body.logprobs)
        self._usage = None if body.include_usage else msgspec.UNSET
        self._tokenizer = tokenizer
        self._begun: set[int] = set()

    def chunks(self, choice: int, output: RequestOutput) -> list[ChatChunk]:
        chunks = []
        if choice not in self._begun:
            self._begun.add(choice)
            chunks.append(self._chunk(ChunkChoice(choice, Delta(role="assistant", content=""))))
        logprobs = self._scored([output])
        if output.text or (logprobs is not None and logprobs.content):
            chunks.append(self._chunk(ChunkChoice(choice, Delta(content=output.text), logprobs=logprobs)))
        if output.finish_reason is not None:
            chunks.append(self._chunk(ChunkChoice(choice, Delta(), output.finish_reason)))
        return chunks

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        return ChatChunk(self.id, self._created, self._model, [], usage=usage)

    def whole(self, outputs: Sequence[Sequence[RequestOutput]], usage: Usage) -> ChatCompletion:
        choices = [
            ChatChoice(
                index,
                ChatMessage("".join(output.text for output in parts)),
                parts[-1].finish_reason or "length",
                self._scored(parts),
            )
            for index, parts in enumerate(outputs)
        ]
        return ChatCompletion(
            self.id, self._created, self._model, choices, usage, trunkline=self.vendor or msgspec.UNSET
        )

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        vendor, self.vendor = self.vendor, None  # the first chunk alone carries it
        return ChatChunk(
            self.id,
            self._created,
            self._model,
            [choice],
            usage=self._usage,
            trunkline=vendor or msgspec.UNSET,
        )

    def _scored(self, outputs: Sequence[RequestOutput]) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return chat_logprobs(
            self._tokenizer, [entry for output in outputs for entry in visible_logprobs(output)]
        )


def _check_last(body: ChatRequest) -> None:
    """Who speaks last decides whether there is anything to answer, or to continue."""
    last = body.messages[-1].role
    where = f"messages[{len(body.messages) - 1}].role"
    if body.continue_final_message and last != "assistant":
        raise invalid(
            "continue_final_message needs a last message from the assistant", where, "invalid_value"
        )
    if last == "assistant" and not body.continue_final_message:
        raise invalid(
            'the last message is from the assistant; "continue_final_message": true goes on with it',
            where,
            "invalid_value",
        )
