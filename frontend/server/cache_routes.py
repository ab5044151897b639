"""What the prefix cache holds, why a prompt was or was not in it, and emptying it."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from trunkline.radix import Namespace

from .answers import Explained, Flushed, Health
from .auth import owns
from .errors import SERVER_ERROR, ApiError
from .openapi import answers
from .service import Service

__all__ = ["cache_router"]

logger = logging.getLogger(__name__)

MAX_NODES = 10_000
DEFAULT_NODES = 1000


def cache_router(service: Service, router: APIRouter) -> None:
    """Adds the routes to `router`."""

    @router.post("/v1/cache/flush", responses=answers(Flushed))
    async def flush(request: Request) -> Response:
        """Drops everything cached that no request holds; with a cache per key, of the caller's own."""
        tenant = service.tenant(request)
        if tenant is None:
            return _json(Flushed(await service.engine.flush_cache()))
        freed = [await service.engine.flush_cache(space) for space in await _own_spaces(service, tenant)]
        return _json(Flushed(sum(freed)))

    @router.get("/v1/cache/tree", responses=answers(None))
    async def tree(
        request: Request, max_nodes: Annotated[int, Query(ge=1, le=MAX_NODES)] = DEFAULT_NODES
    ) -> Response:
        """A snapshot of the radix tree; with a cache per key, of the caller's part of it.

        `text` is how a node begins.
        """
        snapshot = (await service.engine.cache_tree())["tree"]
        tenant = service.tenant(request)
        spaces = [
            space
            for space in snapshot["namespaces"]
            if tenant is None or owns(tenant, space["kind"], space["value"])
        ]
        cut = _cut(spaces, max_nodes)
        for space in cut["namespaces"]:
            for node in space["nodes"]:
                node["text"] = service.tokenizer.decode(node.pop("head"), skip_special=False)
        return _json({"page_size": snapshot["page_size"], **cut})

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


async def _own_spaces(service: Service, tenant: str) -> list[Namespace]:
    """The namespaces of a key that hold anything."""
    spaces = (await service.engine.cache_tree())["tree"]["namespaces"]
    return [
        (space["kind"], space["value"]) for space in spaces if owns(tenant, space["kind"], space["value"])
    ]


def _cut(spaces: list[dict[str, Any]], max_nodes: int) -> dict[str, Any]:
    """The first `max_nodes` nodes of all namespaces, and how many were left out; parents come before children."""
    num_nodes = sum(len(space["nodes"]) for space in spaces)
    kept = []
    left = max_nodes
    for space in spaces:
        kept.append({**space, "nodes": space["nodes"][:left]})
        left -= len(kept[-1]["nodes"])
    return {"num_nodes": num_nodes, "num_left_out": max(0, num_nodes - max_nodes), "namespaces": kept}


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
