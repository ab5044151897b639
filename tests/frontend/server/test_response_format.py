"""Answers that are JSON because nothing else can be sampled."""

import json
from typing import Any

import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.test_bodies import error_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "length": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["river", "lake"]},
    },
    "required": ["name", "length", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "water", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_is_accepted_by_the_schema(server: Server, temperature: float, stream: bool) -> None:
    answer = server.openai().chat.completions.create(
        model=server.name,
        messages=[{"role": "user", "content": "Name one."}],
        response_format=FORMAT,  # type: ignore[arg-type]
        temperature=temperature,
        seed=5,
        max_tokens=200,
        stream=stream,
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
        text, reason = "".join(part.delta.content or "" for part in chunks), chunks[-1].finish_reason
    else:
        text, reason = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert reason == "stop"
    answered = json.loads(text)
    assert list(answered) == ["name", "length", "kind"]
    assert len(answered["name"]) <= 6
    assert 0 <= answered["length"] <= 999
    assert answered["kind"] in ("river", "lake")


def test_any_object_will_do_where_no_schema_is_given(server: Server) -> None:
    fields = {"response_format": {"type": "json_object"}, "max_tokens": 300}
    choice = server.chat("An object, please", **fields)["choices"][0]
    assert choice["message"]["content"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize(
    "schema", [{"type": "no such type"}, {"$ref": "#/nowhere"}, {"type": "string", "pattern": "("}]
)
def test_a_schema_that_is_none_is_refused_by_name(server: Server, schema: dict[str, Any]) -> None:
    body = {
        "model": server.name,
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "bad", "schema": schema}},
    }
    error = error_of(server.post("/v1/chat/completions", body), 400)
    assert error["param"] == "response_format"
