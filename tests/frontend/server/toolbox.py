"""Tools for tests, and a template that knows tools."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs

from tests.frontend.server.tiny_folder import write_tiny_folder

FIND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "limit": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "limit"],
    "additionalProperties": False,
}
PLAN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "kind": {"enum": ["walk", 'a "ride"', "two\nlines"]},
                    "far": {"type": "boolean"},
                },
                "required": ["kind"],
                "additionalProperties": False,
            },
        },
        "budget": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9}]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    },
    "required": ["steps", "budget", "code"],
    "additionalProperties": False,
}
LINKED: dict[str, Any] = {
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"größe": {"const": {"a": [1, 2]}}},
            "required": ["größe"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {"from": {"$ref": "#/$defs/point"}},
    "required": ["from"],
    "additionalProperties": False,
}
SCHEMAS = {"find": FIND, "plan-trip": PLAN, "linked_2": LINKED, "now": None}


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    given = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, "description": f"It is {name}.", **given, **more}}


TOOLS = [tool(name, parameters) for name, parameters in SCHEMAS.items()]


def named(name: str) -> dict[str, Any]:
    """The choice of one function."""
    return {"type": "function", "function": {"name": name}}


def assert_valid(name: str, arguments: str) -> None:
    """The arguments are JSON that the schema of the function accepts."""
    schema = SCHEMAS[name] or {"type": "object", "maxProperties": 0}
    value = json.loads(arguments)
    jsonschema_rs.validator_for(schema).validate(value)


KNOWING_TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{ '\\n' + message.content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def write_knowing_folder(folder: Path) -> Path:
    """The tiny model behind a template that writes tools, calls and results itself."""
    write_tiny_folder(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": KNOWING_TEMPLATE}))
    return folder
