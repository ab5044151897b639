"""Constrained `gen`: the four ways to say it, defaults, and who can't do it."""

import json
import re

import pytest
from pydantic import BaseModel

from tests.frontend.lang.programs import ToyBackend
from tests.frontend.server.serving import Server
from tests.runtime.engines import assert_idle, make_engine
from trunkline import OpenAIBackend, TrunklineServer, function, gen
from trunkline.frontend.lang import LangError, ProgramError, State


class Pet(BaseModel):
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


def test_servers_refuse_constraints_by_name(server: Server) -> None:
    for remote, kind in (
        (TrunklineServer(server.url, api_key="sk-lang"), "Trunkline servers"),
        (OpenAIBackend(f"{server.url}/v1", api_key="sk-lang"), "OpenAI-compatible endpoints"),
    ):
        with pytest.raises(ProgramError, match=f"gen option regex is not supported by {kind}"):
            ask.using(remote, seed=1).run(gen("a", regex="a"))
