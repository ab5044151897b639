"""Constrained `gen`: the four ways to say it, defaults, and who can't do it."""

import asyncio
import json
import re

import pytest
from pydantic import BaseModel, ConfigDict

from benchmarks.language import constrained, fault
from tests.frontend.lang.endpoint import Endpoint, completion
from tests.frontend.lang.programs import ToyBackend
from tests.frontend.server.serving import Server
from tests.runtime.engines import assert_idle, make_engine
from trunkline import OpenAIBackend, TrunklineServer, assistant, function, gen, user
from trunkline.frontend.lang import LangError, ProgramError, State


class Pet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: bool
    legs: bool


@function(temperature=1.0, seed=3)
def ask(s: State, part) -> str:
    s += "Answer: " + part
    return s["a"]


def test_answer_has_the_form_that_gen_asks_for() -> None:
    engine = make_engine()
    program = ask.using(engine)
    assert re.fullmatch("[0-9]{3}", program.run(gen("a", regex="[0-9]{3}")).value)
    assert program.run(gen("a", choices=["red", "green"])).value in ("red", "green")
    Pet.model_validate_json(program.run(gen("a", json_schema=Pet)).value)
    assert json.loads(program.run(gen("a", json_schema={"const": {"x": 1}})).value) == {"x": 1}
    assert program.run(gen("a", ebnf='start: "a" "b"')).value == "ab"
    assert_idle(engine)


def test_constraint_of_a_gen_takes_the_place_of_the_runs() -> None:
    program = ask.using(make_engine(), regex="[0-9]{3}")
    assert re.fullmatch("[0-9]{3}", program.run(gen("a")).value)
    assert program.run(gen("a", choices=["x"])).value == "x"


def test_two_constraints_exclude_each_other_and_a_bad_one_fails_with_its_line() -> None:
    with pytest.raises(LangError, match="gen: regex and ebnf exclude each other"):
        gen("a", regex="a", ebnf="b")
    with pytest.raises(
        ProgramError, match=r"test_constraints.py:\d+ in ask: gen 'a': regex is not a grammar"
    ):
        ask.using(make_engine()).run(gen("a", regex="(a"))
    assert ask.using(ToyBackend()).run(gen("a", regex="(a")).value == "<1>"


@pytest.mark.parametrize("chat", [False, True])
def test_answer_from_a_server_has_the_form_that_gen_asks_for(server: Server, chat: bool) -> None:
    remote = TrunklineServer(server.url, api_key="sk-lang")

    @function(temperature=1.0, max_tokens=60)
    def program(s: State, part) -> str:
        s += user("Answer") + assistant(part) if chat else "Answer: " + part
        return s["a"]

    bound = program.using(remote)
    assert re.fullmatch("[0-9]{3}", bound.run(gen("a", regex="[0-9]{3}")).value)
    assert bound.run(gen("a", choices=["red", "green"])).value in ("red", "green")
    assert bound.run(gen("a", ebnf='start: "a" "b"')).value == "ab"
    for schema in (Pet, Pet.model_json_schema(), json.dumps(Pet.model_json_schema())):
        Pet.model_validate_json(bound.run(gen("a", json_schema=schema)).value)
    stream = bound.run_stream(gen("a", regex="[xy]{4}"))
    assert re.fullmatch("[xy]{4}", "".join(piece.text for piece in stream))
    with pytest.raises(ProgramError, match="answered 400: regex"):
        bound.run(gen("a", regex="(a"))
    with pytest.raises(ProgramError, match="json_schema must be a JSON object"):
        bound.run(gen("a", json_schema=5))


def test_openai_endpoint_is_asked_for_json_in_a_conversation_and_refuses_the_rest_by_name() -> None:
    def answer(path: str, body: dict) -> dict:
        message = {"role": "assistant", "content": '{"kind": true, "legs": false}'}
        return completion("", choices=[{"index": 0, "message": message, "finish_reason": "stop"}])

    async def main() -> None:
        async with Endpoint(answer) as endpoint:
            bound = ask.using(OpenAIBackend(endpoint.url, "m"), seed=1)
            for name, value in (("regex", "a"), ("choices", ["a"]), ("ebnf", "start: A")):
                with pytest.raises(
                    ProgramError, match=f"gen option {name} is not supported by OpenAI-compatible endpoints$"
                ):
                    await bound.arun(gen("a", **{name: value}))
            with pytest.raises(ProgramError, match=r"json_schema is not supported by .* for plain text"):
                await bound.arun(gen("a", json_schema=Pet))

            @function
            def chat(s: State) -> Pet:
                s += user("A cat?") + assistant(gen("a", json_schema=Pet))
                return Pet.model_validate_json(s["a"])

            assert (await chat.using(OpenAIBackend(endpoint.url, "m")).arun()).value == Pet(
                kind=True, legs=False
            )
            (asked,) = endpoint.bodies
            assert asked["response_format"]["type"] == "json_schema"
            assert asked["response_format"]["json_schema"]["schema"] == Pet.model_json_schema()
            assert asked["response_format"]["json_schema"]["strict"] is True

    asyncio.run(main())


def test_answers_to_schemas_of_three_difficulties_and_a_regex_all_parse_and_validate() -> None:
    engine = make_engine(tokens=16384)
    assert constrained(engine, 120) == []
    assert fault("flat", '{"name": "a", "age": 151}') == "151 is greater than the maximum of 150"
    assert fault("lists", '{"kind": ') is not None
    assert fault("regex", "Order 1") == "does not match"
    assert_idle(engine)
