"""The application: routes, limits and what surrounds them."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from trunkline import __version__
from trunkline.errors import TrunklineError
from trunkline.frontend.analyze.request_log import RequestLog
from trunkline.runtime.engine.async_engine import AsyncEngine
from trunkline.runtime.loading import Tokenizer

from .auth import ApiKeys, RequireKey
from .bodies import json_route
from .cache_routes import cache_router
from .chat import chat_router
from .completions import completion_router
from .errors import answer_exception
from .observe import Observe
from .openapi import DescribedApp
from .ops import ops_router, tokenizer_router
from .page import page_router
from .service import Service
from .settings import ServerSettings

__all__ = ["create_app"]


def create_app(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    settings: ServerSettings | None = None,
    log: RequestLog | None = None,
) -> DescribedApp:
    """The server as an ASGI application over a running engine, which it doesn't stop; nor does it close `log`.

    `app.state.service` is the `Service` behind it. `/openapi.json` describes it; there are no pages of
    documentation, since FastAPI's load their scripts from elsewhere.
    """
    settings = settings or ServerSettings()
    service = Service(engine, tokenizer, settings, log)
    app = DescribedApp(
        title="Trunkline", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.service = service
    app.needs_key = bool(settings.api_keys)
    router = APIRouter(route_class=json_route(settings))
    for add_routes in (chat_router, completion_router, cache_router, ops_router, tokenizer_router):
        add_routes(service, router)
    page_router(router)
    app.include_router(router)
    for kind in (RequestValidationError, HTTPException, TrunklineError):
        app.add_exception_handler(kind, answer_exception)
    # The last one added is the outermost.
    if settings.api_keys:
        app.add_middleware(RequireKey, keys=ApiKeys(settings.api_keys))
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    app.add_middleware(Observe, metrics=service.metrics)
    return app
