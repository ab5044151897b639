"""Tools, choices and calls that are none: refused by their place."""

from typing import Any

import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.test_bodies import error_of
from tests.frontend.server.toolbox import TOOLS, named, tool

USER = {"role": "user", "content": "Where to?"}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [tool("a b")]}, "tools[0].function.name", '"a b"'),
        ({"tools": [tool("")]}, "tools[0].function.name", ""),
        ({"tools": [tool("x" * 65)]}, "tools[0].function.name", ""),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name", '"a"'),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0].type", '"custom"'),
        ({"tools": [{"type": "function"}]}, "tools[0].function", ""),
        ({"tools": "find"}, "tools", '"find"'),
        ({"tools": [tool(f"t{number}") for number in range(129)]}, "tools", "128"),
        ({"tools": [tool("a", description="x" * 300_000)]}, "tools", "262144"),
        ({"tools": [tool("a", {"type": "string"})]}, "tools[0].function.parameters.type", '"string"'),
        ({"tools": [tool("a", {"properties": {}})]}, "tools[0].function.parameters.type", "null"),
        (
            {"tools": [tool("a"), tool("b", {"type": "object", "properties": {"x": {"type": "no type"}}})]},
            "tools[1].function.parameters",
            "no type",
        ),
        (
            {"tools": [tool("a", {"type": "object", "$ref": "#/nowhere"})]},
            "tools[0].function.parameters",
            "nowhere",
        ),
        ({"tools": TOOLS, "tool_choice": named("who")}, "tool_choice", '"who"'),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", '"always"'),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "must be"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tool_choice": named("find")}, "tool_choice", "tools"),
        ({"tools": TOOLS, "parallel_tool_calls": "yes"}, "parallel_tool_calls", '"yes"'),
        ({"tools": TOOLS, "tool_choice": "required", "stop": ["x"]}, "stop", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "stop_token_ids": [5]}, "stop_token_ids", "tool_choice"),
        ({"tools": TOOLS, "regex": "a+"}, "regex", "tools"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format", "tools"),
        ({"tools": TOOLS, "ignore_eos": True}, "tools", "ignore_eos"),
        ({"functions": [{"name": "f"}]}, "functions", "functions"),
        ({"function_call": {"name": "f"}}, "function_call", "function_call"),
    ],
)
def test_what_can_not_be_called_is_refused_by_name(
    server: Server, fields: dict[str, Any], param: str, said: str
) -> None:
    error = refused(server, [USER], **fields)
    assert error["param"] == param
    assert said in str(error["message"])
    assert len(str(error["message"])) < 600


def call(**changes: Any) -> dict[str, Any]:
    """A call as a message has it."""
    return {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}, **changes}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "assistant", "tool_calls": [call(type="custom")]}], "messages[0].tool_calls[0].type"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": "x", "tool_calls": [call()]}], "messages[0].role"),
        *(
            (
                [
                    {
                        "role": "assistant",
                        "tool_calls": [call(function={"name": "find", "arguments": arguments})],
                    }
                ],
                "messages[0].tool_calls[0].function.arguments",
            )
            for arguments in ("{", "[1]", "5", None, {"a": 1}, "[" * 100_000)
        ),
        ([{"role": "tool", "content": "x", "tool_call_id": "nobody's"}], "messages[0].tool_call_id"),
    ],
)
def test_a_call_that_was_none_is_refused_by_its_place(server: Server, messages: Any, param: str) -> None:
    assert refused(server, [*messages, USER])["param"] == param


def test_nothing_goes_on_behind_a_call(server: Server) -> None:
    messages = [USER, {"role": "assistant", "content": "a", "tool_calls": [call()]}]
    error = refused(server, messages, continue_final_message=True)
    assert error["param"] == "messages[1].tool_calls"


def refused(server: Server, messages: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": server.name, "messages": messages, "max_tokens": 4, **fields}
    return error_of(server.post("/v1/chat/completions", body), 400)
