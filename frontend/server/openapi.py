"""The server's own OpenAPI document: what FastAPI can't see, because answers are msgspec structs."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI

from . import answers as answer_module
from .errors import ERROR_SCHEMA

__all__ = ["DescribedApp", "answers"]

REFERENCE = "#/components/schemas/{name}"


def answers(
    kind: type[msgspec.Struct] | None, *, stream: type[msgspec.Struct] | None = None
) -> dict[int | str, Any]:
    """The `responses` of a route that answers a `kind`, and events of type `stream`; None leaves it open."""
    documented: dict[int | str, Any] = {"4XX": _described("What is wrong with the request.", "Error")}
    documented["5XX"] = _described("What went wrong in the server.", "Error")
    if kind is not None:
        documented[200] = _described("The answer.", kind.__name__)
        if stream is not None:
            documented[200]["content"]["text/event-stream"] = {"schema": _reference(stream.__name__)}
    return documented


class DescribedApp(FastAPI):
    """A FastAPI application whose document also has the answers' schemas and the way to authenticate."""

    needs_key = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(_answer_schemas())
            if self.needs_key:
                components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"key": []}]
            self.openapi_schema = document
        return self.openapi_schema


def _answer_schemas() -> dict[str, Any]:
    structs = [
        item
        for name in answer_module.__all__
        if isinstance(item := getattr(answer_module, name), type) and issubclass(item, msgspec.Struct)
    ]
    _, schemas = msgspec.json.schema_components(structs, ref_template=REFERENCE)
    return {**schemas, "Error": ERROR_SCHEMA}


def _described(description: str, name: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _reference(name)}}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": REFERENCE.format(name=name)}
