"""API keys: who may ask, and whose prefix cache an answer may come from."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.radix import DEFAULT_NAMESPACE, Namespace

from .errors import ApiError, error_response

__all__ = ["ApiKeys", "RequireKey", "namespace_for", "owns"]

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/favicon.ico"})
TENANT_DIGITS = 24


class ApiKeys:
    """The keys that are accepted, kept as digests."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def tenant(self, authorization: str) -> str | None:
        """Whose key an `Authorization` header carries, as a name that doesn't betray the key; None: nobody's.

        Takes as long for a wrong key as for any right one.
        """
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip())
        found = None
        for digest in self._digests:
            if hmac.compare_digest(given, digest):
                found = digest.hex()[:TENANT_DIGITS]
        return found if scheme.lower() == "bearer" else None


class RequireKey:
    """ASGI middleware: 401 without a right key, except for probes and the page itself."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        header = Headers(scope=scope).get("authorization", "")
        tenant = self._keys.tenant(header)
        if tenant is None:
            await error_response(_unauthorized(bool(header)))(scope, receive, send)
            return
        scope["state"]["tenant"] = tenant
        await self._app(scope, receive, send)


def namespace_for(tenant: str | None, salt: str | None) -> Namespace:
    """The part of the prefix cache a request may see; all tenants' names have one length, so none collide."""
    if tenant is not None:
        return ("tenant", tenant if salt is None else f"{tenant}:{salt}")
    return DEFAULT_NAMESPACE if salt is None else ("salt", salt)


def owns(tenant: str, kind: str, value: str) -> bool:
    """Whether a namespace is one of the tenant's."""
    return kind == "tenant" and value[:TENANT_DIGITS] == tenant


def _unauthorized(stated: bool) -> ApiError:
    message = "the API key is not valid" if stated else "an API key is needed: Authorization: Bearer KEY"
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
