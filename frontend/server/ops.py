"""Probes, metrics, models and the tokenizer."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from .answers import Detokenized, Health, Model, ModelList, Tokenized
from .errors import ApiError, invalid
from .metrics import CONTENT_TYPE
from .openapi import answers
from .schemas import DetokenizeRequest, TokenizeRequest
from .service import Service

__all__ = ["ops_router", "tokenizer_router"]


def ops_router(service: Service, router: APIRouter) -> None:
    """Adds the routes to `router`."""

    @router.head("/health", include_in_schema=False)
    @router.get("/health", responses=answers(Health))
    async def health() -> Response:
        """200 while the engine lives."""
        return _probe(service.engine.alive)

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", responses=answers(Health))
    async def ready() -> Response:
        """200 while new requests are taken: not during a shutdown."""
        return _probe(service.engine.alive and service.room.is_open)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Counters, gauges and histograms in Prometheus' text format."""
        return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    @router.get("/v1/models", responses=answers(ModelList))
    async def list_models() -> Response:
        """The names under which the model can be asked for."""
        return _json(ModelList([_model(service, name) for name in service.names]))

    @router.get("/v1/models/{name:path}", responses=answers(Model))
    async def retrieve_model(name: str) -> Response:
        """One of those names."""
        if name not in service.names:
            raise ApiError(404, "there is no model of this name", param="model", code="model_not_found")
        return _json(_model(service, name))


def tokenizer_router(service: Service, router: APIRouter) -> None:
    """Adds the tokenizer's routes to `router`."""

    @router.post("/tokenize", responses=answers(Tokenized))
    async def tokenize(body: TokenizeRequest) -> Response:
        """The token ids of a text, or of a conversation in the model's chat template."""
        service.check_model(body.model)
        service.check_unknown(body)
        if body.messages is not None:
            prompt = await service.encoder.chat(
                body.messages,
                body.tools or (),
                add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
                continue_final=body.continue_final_message,
            )
            ids = prompt.ids
        else:
            ids = await service.encoder.text(
                body.prompt or "",
                add_special=body.add_special_tokens,
                allow_special=body.allow_special_tokens,
            )
        pieces = [service.tokenizer.id_to_piece(int(id)) for id in ids] if body.pieces else None
        return _json(Tokenized(ids.tolist(), pieces, len(ids), service.info.max_model_len))

    @router.post("/detokenize", responses=answers(Detokenized))
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        service.check_model(body.model)
        service.check_unknown(body)
        size = service.info.vocab_size
        for index, token in enumerate(body.tokens):
            if token >= size:
                raise invalid(
                    f"tokens[{index}] is {token}, outside of the vocabulary, [0, {size})",
                    f"tokens[{index}]",
                    "invalid_value",
                )
        return _json(
            Detokenized(await service.encoder.decode(body.tokens, skip_special=body.skip_special_tokens))
        )


def _model(service: Service, name: str) -> Model:
    return Model(name, service.started, service.info.max_model_len)


def _probe(good: bool) -> Response:
    return Response(
        msgspec.json.encode(Health("ok" if good else "unavailable")),
        200 if good else 503,
        media_type="application/json",
    )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
