"""How a model gets to know of tools, of the calls it made, and of what came back.

A chat template that writes calls in the form of `tool_calls` is left to do all that. For any other template the
tools are described in the system message, calls are part of the assistant's text, and results are what the user says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from trunkline.runtime.errors import RuntimeRoomError
from trunkline.runtime.loading import JsonText, Tokenizer

from .messages import Message
from .tool_calls import BETWEEN, spelled_call
from .tools import Tool

__all__ = ["ToolPrompts"]

DESCRIPTION = """You can call functions. To call one, write

{form}

with the function's name and its arguments. For several calls, write several such blocks, one below the other.
What a function returns comes back between <tool_response> and </tool_response>.

The functions, each with the JSON schema of its parameters:
{functions}"""
FORM = spelled_call("function_name", '{"parameter": "value"}')


class ToolPrompts:
    """Tools and calls in the form that a tokenizer's chat template takes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def prepared(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]] | None]:
        """The messages and the tools for the template; results stand in the order of their calls."""
        given = _in_order([message.for_template() for message in messages])
        functions = [tool.function.for_prompt() for tool in tools]
        if self._knows_tools if tools else self._knows_calls:
            return given, [{"type": "function", "function": function} for function in functions] or None
        spelled = [_spelled(message) for message in given]
        return _described(_joined_results(spelled), functions), None

    @cached_property
    def _knows_tools(self) -> bool:
        function = {
            "name": "probe_name",
            "description": "probe_description",
            "parameters": {"type": "object"},
        }
        return self._writes_calls([{"type": "function", "function": function}])

    @cached_property
    def _knows_calls(self) -> bool:
        return self._writes_calls(None)

    def _writes_calls(self, tools: Sequence[Mapping[str, Any]] | None) -> bool:
        """Whether the template, tried out, writes a call as the model will, a result, and what the tools are."""
        function = {"name": "probe_name", "arguments": JsonText('{"probe_key": "probe_value"}')}
        call = {"id": "probe_id", "type": "function", "function": function}
        conversation: list[Mapping[str, Any]] = [
            {"role": "user", "content": "probe_question"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "probe_result", "tool_call_id": "probe_id"},
        ]
        try:
            text = self._tokenizer.render_chat(conversation, tools=tools).text
        except RuntimeRoomError:
            return False
        written = spelled_call("probe_name", '{"probe_key": "probe_value"}')
        return written in text and "probe_result" in text and (tools is None or "probe_description" in text)


def _in_order(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Results that follow each other, in the order in which they were asked for: templates leave ids out."""
    order = {
        call["id"]: number
        for number, call in enumerate(call for message in messages for call in message.get("tool_calls", ()))
    }
    ordered: list[Mapping[str, Any]] = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        some = list(group)
        if is_result and all(message.get("tool_call_id") in order for message in some):
            some.sort(key=lambda message: order[message["tool_call_id"]])
        ordered += some
    return ordered


def _spelled(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose calls are part of its text, as the model wrote them."""
    calls = [
        spelled_call(call["function"]["name"], call["function"]["arguments"].json_source)
        for call in message.get("tool_calls", ())
    ]
    if not calls:
        return message
    text = BETWEEN.join([*([message["content"]] if message["content"] else []), *calls])
    return {"role": message["role"], "content": text}


def _joined_results(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Results that follow each other as one message of the user's."""
    joined: list[Mapping[str, Any]] = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            results = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in group]
            joined.append({"role": "user", "content": "\n".join(results)})
        else:
            joined += group
    return joined


def _described(
    messages: list[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The messages with the functions at the end of the system message."""
    if not functions:
        return messages
    lines = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    text = DESCRIPTION.format(form=FORM, functions=lines)
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    first = messages[0]
    return [
        {**first, "content": f"{first['content']}\n\n{text}" if first["content"] else text},
        *messages[1:],
    ]
