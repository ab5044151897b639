"""What the requests are made of: their base, and the objects in them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from trunkline.runtime.sampling import Constraint

__all__ = [
    "JsonSchemaFormat",
    "RequestBody",
    "ResponseFormat",
    "StreamOptions",
    "Strict",
    "TrunklineOptions",
    "unsupported",
    "whole",
]


class Strict(BaseModel):
    """An object in a request's body; unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class RequestBody(BaseModel):
    """A request's body; unknown fields are kept apart, those known but not built are refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    not_built: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI's that nothing here implements, each with the values that ask for nothing."""

    @model_validator(mode="after")
    def _refuse_what_is_not_built(self) -> RequestBody:
        for name, harmless in self.not_built.items():
            if self.unknown.get(name) not in (None, *harmless):
                raise unsupported(name)
        return self

    @property
    def unknown(self) -> dict[str, Any]:
        """The fields that nobody knows here."""
        return self.model_extra or {}


class StreamOptions(Strict):
    """How a stream is written."""

    include_usage: bool = False


class JsonSchemaFormat(Strict):
    """A JSON schema; `strict` or not, it is kept to."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the answer must look like: free text, some JSON object, or JSON that a schema accepts."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise whole(
                "json_schema", 'response_format.json_schema goes with "type": "json_schema", and that with it'
            )
        return self

    def constraint(self) -> Constraint | None:
        """The same for the sampler; None for free text. Raises RequestError for a schema that is too long."""
        if self.type == "text":
            return None
        return Constraint.json_schema(True if self.json_schema is None else self.json_schema.json_schema)


class TrunklineOptions(Strict):
    """What only this server tells: `cache` asks for the prompt's partition into cached and missed tokens."""

    cache: bool = False


def whole(name: str, message: str) -> PydanticCustomError:
    """An error about how fields go together; its message says it all."""
    return PydanticCustomError("whole_request", "{message}", {"at": name, "message": message})


def unsupported(at: str, what: str | None = None) -> PydanticCustomError:
    """An error about a field that OpenAI knows and nothing here implements."""
    return PydanticCustomError(
        "not_supported", "{message}", {"at": at, "message": f"{what or at} is not supported"}
    )
