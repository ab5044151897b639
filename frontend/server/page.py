"""`GET /`: a page to chat on and to watch the prefix cache, complete in itself."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

__all__ = ["page_router"]


def page_router(router: APIRouter) -> None:
    """Adds the route to `router`."""
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": _policy(page),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

    @router.get("/", include_in_schema=False)
    async def show_page() -> Response:
        """The page; it asks this server for everything else."""
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _policy(page: str) -> str:
    """Allows the page's own script and style, calls to this server, and nothing else."""
    scripts, styles = (_hashes(page, name) for name in ("script", "style"))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; style-src-attr 'unsafe-inline';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hashes(page: str, name: str) -> str:
    contents = re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
    return " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in contents
    )
