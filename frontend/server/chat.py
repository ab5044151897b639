"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from .answering import Prepared, answer
from .answers import ChatChunk, ChatCompletion
from .chat_layout import ChatLayout
from .errors import invalid, shown
from .messages import Message
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
        _check_results(body.messages)

        async def prepare() -> Prepared:
            prompt = await service.encoder.chat(
                body.messages,
                body.tools or (),
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


def _check_last(body: ChatRequest) -> None:
    """Who speaks last decides whether there is anything to answer, or to continue."""
    last = body.messages[-1].role
    if body.continue_final_message and body.messages[-1].tool_calls:
        where = f"messages[{len(body.messages) - 1}].tool_calls"
        raise invalid(f"{where}: continue_final_message can't go on behind calls", where, "invalid_value")
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


def _check_results(messages: Sequence[Message]) -> None:
    """A result that names a call answers one that was made."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        called.update(call.id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id is not None and message.tool_call_id not in called:
            where = f"messages[{index}].tool_call_id"
            raise invalid(
                f"{where}: no earlier message has a call {shown(message.tool_call_id)}",
                where,
                "invalid_value",
            )
