"""What the prefix cache holds, why a prompt was or was not in it, and emptying it."""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from .answers import Explained, Flushed, Health
from .auth import owns
from .errors import SERVER_ERROR, ApiError
from .openapi import answers
from .service import Service

__all__ = ["cache_router"]

logger = logging.getLogger(__name__)

MAX_NODES = 10_000


def cache_router(service: Service, router: APIRouter) -> None:
    """Adds the routes to `router`."""

    @router.post("/v1/cache/flush", responses=answers(Flushed))
    async def flush(request: Request) -> Response:
        """Drops everything cached that no request holds; with a cache per key, that of the caller's key."""
        tenant = service.tenant(request)
        freed = await service.engine.flush_cache(None if tenant is None else ("tenant", tenant))
        return _json(Flushed(freed))

    @router.get("/v1/cache/tree", responses=answers(None))
    async def tree(
        request: Request,
        max_nodes: Annotated[int, Query(ge=1, le=MAX_NODES)] = 1000,
        tokens: Annotated[bool, Query()] = False,
    ) -> Response:
        """A snapshot of the radix tree; with a cache per key, of the caller's part of it."""
        snapshot = await service.engine.cache_tree(max_nodes, tokens)
        tenant = service.tenant(request)
        if tenant is not None:
            snapshot["nodes"] = [node for node in snapshot["nodes"] if owns(tenant, node["namespace"])]
        return _json(snapshot)

    @router.get("/v1/cache/explain/{id}", responses=answers(Explained))
    async def explain(id: str, request: Request) -> Response:
        """The partition of the prompt of a recent request that asked for it with `trunkline.cache`."""
        explanation = service.explanations.get(id, service.tenant(request))
        if explanation is None:
            raise ApiError(
                404,
                "no explanation is kept for this id; ask for one with trunkline.cache",
                param="id",
                code="not_found",
            )
        return _json(Explained(id, explanation))

    @router.post("/v1/cache/check", responses=answers(Health))
    async def check() -> Response:
        """Recomputes every invariant of pool, tree and scheduler; 500 where one is broken."""
        try:
            await service.engine.check()
        except RuntimeError as error:
            logger.error("an invariant is broken: %s", error)
            raise ApiError(500, "an invariant is broken; the log says which", type=SERVER_ERROR) from None
        return _json(Health("ok"))


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
