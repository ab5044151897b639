"""The tools of a chat request, which of them may be called, and calls that come back in messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from trunkline.runtime.loading import JsonText

from .fields import problem
from .schema_parts import Strict

__all__ = ["Function", "FunctionCall", "Tool", "ToolCallPart", "ToolChoice", "ToolChoiceField", "Tools"]

MAX_TOOLS = 128
MAX_TOOLS_CHARACTERS = 2**18
NAME = r"^[a-zA-Z0-9_-]{1,64}$"
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

Name = Annotated[str, Field(pattern=NAME)]
CallId = Annotated[str, Field(min_length=1, max_length=256)]


def _parameters(value: Any) -> Any:
    """An empty schema is what a function without parameters has."""
    if value is None or value == {}:
        return NO_PARAMETERS
    if isinstance(value, dict) and value.get("type") != "object":
        raise problem('must be "object"', ".type", value.get("type"))
    return value


Parameters = Annotated[dict[str, Any], BeforeValidator(_parameters)]


class Function(Strict):
    """A function that may be called; `strict` or not, the arguments keep to the schema of the parameters."""

    name: Name
    description: str | None = None
    parameters: Parameters = NO_PARAMETERS
    strict: bool | None = None

    def for_prompt(self) -> dict[str, Any]:
        """What the model gets to know."""
        described = {} if self.description is None else {"description": self.description}
        return {"name": self.name, **described, "parameters": self.parameters}


class Tool(Strict):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


def _tools(value: Any) -> Any:
    """Refuses lists of tools that are too long or have a name twice, before each is looked at."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_TOOLS:
        raise problem(f"must hold at most {MAX_TOOLS} tools", value=value)
    if len(json.dumps(value)) > MAX_TOOLS_CHARACTERS:
        raise problem(f"must have at most {MAX_TOOLS_CHARACTERS} characters of JSON", value=value)
    seen: set[str] = set()
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            if name in seen:
                raise problem("must be the name of one function only", f"[{index}].function.name", name)
            seen.add(name)
    return value


Tools = Annotated[
    list[Tool],
    BeforeValidator(_tools),
    Field(max_length=MAX_TOOLS, json_schema_extra={"maxItems": MAX_TOOLS}),
]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools may be called, must be, or one by name must be."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None


def _tool_choice(value: Any) -> Any:
    match value:
        case ToolChoice() | None:
            return value
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "function": {"name": str(name), **more}, **rest} if not more and not rest:
            return ToolChoice("named", name)
    raise problem(
        'must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}', value=value
    )


ToolChoiceField = Annotated[
    ToolChoice,
    BeforeValidator(_tool_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "required": ["type", "function"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "required": ["name"],
                            "additionalProperties": False,
                            "properties": {"name": {"type": "string", "pattern": NAME}},
                        },
                    },
                },
            ]
        }
    ),
]


def _arguments(value: Any) -> Any:
    """JSON text of an object, as it stands; an empty text is an object without members."""
    if not isinstance(value, str):
        return value
    text = value.strip() or "{}"
    try:
        JsonText(text)
    except (ValueError, RecursionError):
        raise problem("must be the JSON of an object, as text", value=value) from None
    return text


class FunctionCall(Strict):
    """The function that was called, and with what."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: Name
    arguments: Annotated[str, BeforeValidator(_arguments)]


class ToolCallPart(Strict):
    """A call that an earlier answer made."""

    model_config = ConfigDict(strict=True, extra="ignore")
    id: CallId
    type: Literal["function"] = "function"
    function: FunctionCall

    def for_template(self) -> Mapping[str, Any]:
        """The call as chat templates know it."""
        function = {"name": self.function.name, "arguments": JsonText(self.function.arguments)}
        return {"id": self.id, "type": self.type, "function": function}
