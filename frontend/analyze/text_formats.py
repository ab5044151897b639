"""Readers of inputs with text: OpenAI requests and responses, conversations, ShareGPT, plain prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from trunkline.errors import TrunklineError
from trunkline.runtime.loading import Tokenizer

from .builder import NAN, Record, TraceBuilder
from .lines import BadRecord
from .types import Int32Array

_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bard", "bing", "claude", "model"), "assistant"),
    **dict.fromkeys(("system",), "system"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model as text: messages or a prompt, and the answer where it is known."""

    id: str
    messages: Sequence[Mapping[str, Any]] | None
    prompt: str | Sequence[int] | None
    tools: Sequence[Mapping[str, Any]] | None
    answer: str
    time: float
    reported_cached: int
    labels: Mapping[str, str]


class TextReader:
    """Turns rows with text into token sequences of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._noted_tools = False

    def __call__(self, builder: TraceBuilder, row: Mapping[str, Any], number: int, unit: float) -> None:
        """Add the calls in one row. Raises BadRecord."""
        for call in calls_of(row, number):
            try:
                prompt = self._prompt_ids(builder, call)
                answer = self._tokenizer.encode(call.answer, add_bos=False) if call.answer else None
            except TrunklineError as error:
                raise BadRecord(str(error)) from None
            builder.outputs_cached |= answer is not None
            stored = prompt if answer is None else np.concatenate([prompt, answer])
            builder.add(
                Record(
                    id=call.id,
                    num_tokens=len(prompt),
                    num_output_tokens=0 if answer is None else len(answer),
                    time=call.time,
                    tokens=stored,
                    reported_cached=call.reported_cached,
                    labels=call.labels,
                )
            )

    def _prompt_ids(self, builder: TraceBuilder, call: Call) -> Int32Array:
        if call.messages is None:
            if isinstance(call.prompt, str):
                return self._tokenizer.encode(call.prompt)
            return np.array(call.prompt, dtype=np.int32)
        messages = [_plain(message) for message in call.messages]
        if not self._tokenizer.has_chat_template:
            text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
            return self._tokenizer.encode(_tools_text(call.tools) + text)
        prompt = self._tokenizer.render_chat(messages, tools=call.tools)
        if call.tools and _tool_name(call.tools[0]) not in prompt.text:
            # The template leaves tools out; a server for tool calls puts them first.
            if not self._noted_tools:
                builder.notes.append(
                    "the chat template has no place for tools; they are put before the prompt"
                )
                self._noted_tools = True
            return np.concatenate([self._tokenizer.encode(_tools_text(call.tools)), prompt.ids])
        return prompt.ids


def is_text(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of those `calls_of` understands."""
    request = _request(row)
    return any(key in request for key in ("messages", "prompt")) or "conversations" in row


def calls_of(row: Mapping[str, Any], number: int) -> Iterator[Call]:
    """The calls in one row: one for a request; one for each answer of a recorded conversation."""
    request = _request(row)
    base = Call(
        id=str(row.get("custom_id") or row.get("request_id") or row.get("id") or number),
        messages=None,
        prompt=None,
        tools=_list(request, "tools"),
        answer="",
        time=_time(row, request),
        reported_cached=_reported(row),
        labels=_labels(row, request),
    )
    if "conversations" in row:
        yield from _conversation(_sharegpt(row["conversations"]), base)
    elif (messages := request.get("messages")) is not None:
        _require_messages(messages)
        answer = _answer(row)
        if not answer and _is_recorded(row, messages):
            yield from _conversation(messages, base)
        else:
            yield replace(base, messages=messages, answer=answer)
    else:
        yield replace(base, prompt=_prompt(request.get("prompt")), answer=_answer(row))


def _conversation(messages: Sequence[Mapping[str, Any]], base: Call) -> Iterator[Call]:
    """Each of the assistant's messages is the answer to a call with everything before it."""
    session = base.labels["session"] or base.id
    turn = 0
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and index:
            labels = {**base.labels, "session": session}
            answer = _plain(message)["content"]
            yield replace(
                base, id=f"{base.id}/{turn}", messages=messages[:index], answer=answer, labels=labels
            )
            turn += 1
    if messages and not turn:
        yield replace(base, messages=messages)


def _is_recorded(row: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the messages are a whole conversation rather than what one call was asked."""
    if messages[-1].get("role") == "assistant":
        return True
    is_request = "model" in row or _request(row) is not row
    return not is_request and any(message["role"] == "assistant" for message in messages)


def _request(row: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("request", "body"):
        inner = row.get(key)
        if isinstance(inner, dict):
            return inner["body"] if isinstance(inner.get("body"), dict) else inner
    return row


def _response(row: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = row.get("response")
    if isinstance(inner, dict):
        return inner["body"] if isinstance(inner.get("body"), dict) else inner
    return row


def _answer(row: Mapping[str, Any]) -> str:
    choices = _response(row).get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    else:
        text = row.get("response") if "response" in row else row.get("answer", row.get("completion"))
    return text if isinstance(text, str) else ""


def _reported(row: Mapping[str, Any]) -> int:
    usage = _response(row).get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if type(cached) is int and cached >= 0 else -1


def _labels(row: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, str]:
    metadata = request.get("metadata") if isinstance(request.get("metadata"), dict) else {}
    places = (row, request, metadata or {})

    def find(*names: str) -> str:
        found = (place[name] for name in names for place in places if place.get(name) is not None)
        return str(next(found, ""))

    return {
        "namespace": find("namespace", "cache_salt"),
        "tenant": find("tenant", "organization", "user"),
        "model": find("model"),
        "session": find("session_id", "conversation_id", "session"),
        "call_site": find("call_site", "endpoint", "prompt_name"),
    }


def _time(row: Mapping[str, Any], request: Mapping[str, Any]) -> float:
    for place in (row, request, _response(row)):
        for name in ("timestamp", "created_at", "time", "created", "start_time"):
            if name in place:
                return _seconds(place[name])
    return NAN


def _seconds(value: Any) -> float:
    """A date, or a number whose size tells seconds from milli-, micro- and nanoseconds."""
    if isinstance(value, str):
        try:
            date = datetime.fromisoformat(value.strip())
        except ValueError:
            raise BadRecord("its time is neither a number nor an ISO date") from None
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e20:
        raise BadRecord("its time is neither a number nor an ISO date")
    return float(value) * next((unit for limit, unit in _UNITS if value >= limit), 1.0)


def _sharegpt(turns: Any) -> list[dict[str, Any]]:
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRecord("conversations is not a list of messages")
    messages = []
    for turn in turns:
        role, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if role not in _SHAREGPT_ROLES or not isinstance(text, str):
            raise BadRecord("a message of a conversation has an unknown role or no text")
        messages.append({"role": _SHAREGPT_ROLES[role], "content": text})
    return messages


def _require_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages or not all(isinstance(part, dict) for part in messages):
        raise BadRecord("messages is not a list of messages")
    if not all(isinstance(part.get("role"), str) for part in messages):
        raise BadRecord("a message has no role")


def _prompt(prompt: Any) -> str | list[int]:
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(id) is int and 0 <= id < 2**31 for id in prompt):
        return prompt
    raise BadRecord("prompt is neither text nor a list of token ids")


def _plain(message: Mapping[str, Any]) -> dict[str, str]:
    """Role and text; tool calls as JSON, parts of a message joined. Raises BadRecord for other parts."""
    content = message.get("content")
    if isinstance(content, list):
        if any(not isinstance(part, dict) or not isinstance(part.get("text"), str) for part in content):
            raise BadRecord("a message has a part that is no text")
        content = "".join(part["text"] for part in content)
    text = content if isinstance(content, str) else ""
    if message.get("tool_calls"):
        text += json.dumps(message["tool_calls"], ensure_ascii=False)
    return {"role": str(message["role"]), "content": text}


def _list(request: Mapping[str, Any], key: str) -> list[dict[str, Any]] | None:
    found = request.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        return None
    return found or None


def _tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    return str(function.get("name") if isinstance(function, dict) else tool.get("name"))


def _tools_text(tools: Sequence[Mapping[str, Any]] | None) -> str:
    return "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools or ())
