"""Constrained answers: always in the language, whatever the model, the batch, the cache and the memory do."""

import json
import re

import jsonschema_rs
import msgspec
import numpy as np
import pytest
from pydantic import BaseModel

from tests.runtime.engines import (
    assert_idle,
    embedded_tokenizer,
    make_engine,
    taught_short_answers,
    tiny_model,
    token_lists,
)
from trunkline import SamplingParams
from trunkline.runtime.engine import Engine
from trunkline.runtime.errors import RequestError
from trunkline.runtime.sampling import Constraint, Grammars, InvalidSamplingParams, Waiting

FLAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LISTS = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["plant", "animal", "fungus"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3},
        "edible": {"type": "boolean"},
    },
    "required": ["kind", "tags", "edible"],
    "additionalProperties": False,
}
NESTED = {
    "$defs": {
        "point": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "minimum": -99, "maximum": 99},
                "label": {"anyOf": [{"type": "string", "pattern": "^[a-z]{1,8}$"}, {"type": "null"}]},
            },
            "required": ["x", "label"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 2},
        "meta": {
            "type": "object",
            "properties": {"version": {"const": 2}},
            "required": ["version"],
            "additionalProperties": False,
        },
    },
    "required": ["id", "points"],
    "additionalProperties": False,
}
PATTERN = r"Order [0-9]{3}-[A-Z]{2} (shipped|lost) on 20[0-9]{2}"
LIST = 'start: "[" item ("," item)* "]"\nitem: /[0-9]{1,2}/ | "x"\n'


def params(constraint: Constraint, **more) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 300, "temperature": 1.0, "constraint": constraint, **more})


def answers(engine: Engine, constraint: Constraint, count: int = 1, **more) -> list[str]:
    asked = [params(constraint, seed=seed, **more) for seed in range(count)]
    generations = engine.generate([f"Prompt {seed}:" for seed in range(count)], asked)
    assert [generation.finish_reason for generation in generations] == ["stop"] * count
    return [generation.text for generation in generations]


@pytest.mark.slow
@pytest.mark.parametrize("schema", [FLAT, LISTS, NESTED], ids=["flat", "lists", "nested"])
def test_two_hundred_and_fifty_answers_to_each_schema_all_validate(schema: dict) -> None:
    engine = make_engine(tokens=16384)
    valid = jsonschema_rs.validator_for(schema)
    for text in answers(engine, Constraint.json_schema(schema), 250):
        valid.validate(json.loads(text))
    assert_idle(engine)


@pytest.mark.slow
def test_two_hundred_and_fifty_answers_all_match_their_pattern() -> None:
    found = answers(make_engine(tokens=16384), Constraint.regex(PATTERN), 250)
    assert all(re.fullmatch(PATTERN, text) for text in found)
    assert len(set(found)) > 200


def test_answer_is_one_of_the_choices_also_where_one_begins_another() -> None:
    choices = ["yes", "yes, sir", 'a "quoted"\nline', "žluť"]
    assert set(answers(make_engine(), Constraint.choices(choices), 60)) == set(choices)


def test_answer_is_derived_from_a_grammar() -> None:
    for text in answers(make_engine(), Constraint.ebnf(LIST), 10, logit_bias={33: 5.0}):
        assert re.fullmatch(r"\[([0-9]{1,2}|x)(,([0-9]{1,2}|x))*\]", text)


def test_pydantic_models_json_text_and_true_are_schemas_too() -> None:
    class Pet(BaseModel):
        name: str
        legs: int

    constraint = Constraint.json_schema(Pet)
    assert constraint == Constraint.json_schema(json.dumps(Pet.model_json_schema()))
    assert Constraint.json_schema(True).source == '{"type": "object"}'


def test_forced_tokens_come_without_a_step_each_and_the_end_comes_at_once() -> None:
    engine = make_engine()
    text = "The one and only answer that this grammar leaves to the model is forty-two."
    (generation,) = engine.generate(["Well:"], params(Constraint.choices([text])))
    assert generation.text == text
    assert len(generation.token_ids) > 12
    assert engine.stats().num_steps <= 3


def test_answer_with_logprobs_has_one_for_each_token() -> None:
    engine = make_engine()
    (generation,) = engine.generate(["Well:"], params(Constraint.choices(["exactly this"]), logprobs=1))
    assert generation.text == "exactly this"
    assert [entry.token.token_id for entry in generation.choices[0].logprobs] == generation.token_ids


def test_answers_are_the_same_alone_batched_chunked_and_preempted() -> None:
    asked = params(Constraint.json_schema(NESTED), temperature=0.0)
    prompts = [f"Number {number} of the prompts" for number in range(8)]
    alone = [make_engine().generate([prompt], asked)[0].token_ids for prompt in prompts]
    assert token_lists(make_engine().generate(prompts, asked)) == alone
    assert token_lists(make_engine(max_num_batched_tokens=9).generate(prompts, asked)) == alone
    crowded = taught_short_answers(make_engine(tokens=320))
    assert token_lists(crowded.generate(prompts, asked)) == alone
    assert crowded.stats().num_preemptions > 0
    assert_idle(crowded)


def test_unconstrained_batch_mates_are_left_alone() -> None:
    free = SamplingParams(temperature=0.0, max_tokens=10)
    alone = make_engine().generate(["Free"], free)[0].token_ids
    mixed = make_engine().generate(["Free", "Bound"], [free, params(Constraint.choices(["a", "b"]))])
    assert mixed[0].token_ids == alone
    assert mixed[1].text in ("a", "b")


def test_forgotten_states_are_found_again_from_the_output_alone() -> None:
    tokenizer = embedded_tokenizer()
    constraint = Constraint.regex("[ab]{4}c")
    kept, fresh = (Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids) for _ in range(2))
    output = np.array([], dtype=np.int32)
    for letter in "abba":
        masks = [
            grammars.begin([Waiting("id", constraint, output)]).result()["id"] for grammars in (kept, fresh)
        ]
        assert np.array_equal(*masks)
        token = tokenizer.token_to_id(letter)
        assert masks[0][token] == 0
        assert np.isneginf(masks[0][list(tokenizer.special_ids)]).all()
        fresh._states.clear()
        output = np.append(output, np.int32(token))


def test_same_id_with_another_output_or_constraint_begins_anew() -> None:
    tokenizer = embedded_tokenizer()
    grammars = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")

    def allowed(pattern: str, output: list[int]) -> tuple[bool, bool]:
        waiting = Waiting("id", Constraint.regex(pattern), np.array(output, dtype=np.int32))
        mask = grammars.begin([waiting]).result()["id"]
        return mask[a] == 0, mask[b] == 0

    assert allowed("[ac]b", [a]) == (False, True)
    assert allowed("[ac]b", []) == (True, False)
    assert allowed("[bd]a", []) == (False, True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint.regex("(a"), "regex is not a grammar that is supported: .*unclosed group"),
        (lambda: Constraint.ebnf("start: nowhere"), "ebnf is not a grammar that is supported"),
        (
            lambda: Constraint.json_schema({"type": "nonsense"}),
            "json_schema is not a grammar that is supported",
        ),
        (lambda: Constraint.json_schema("{"), "json_schema is no JSON"),
        (lambda: Constraint.json_schema([1]), "json_schema must be a JSON object"),
        (lambda: Constraint.choices([]), "choices must be a list of strings"),
        (lambda: Constraint.choices("ab"), "choices must be a list of strings"),
        (lambda: Constraint.choices(["a", ""]), "choices must be a list of strings"),
        (lambda: Constraint.regex(""), "regex must be text that is not empty"),
        (lambda: Constraint.regex("a" * 2_000_000), "regex has 2000000 characters"),
        (lambda: Constraint("poem", "x"), "kind 'poem' is none of"),
    ],
)
def test_what_is_no_grammar_is_refused_and_the_engine_goes_on(make, message: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=message) as caught:
        engine.add_request("x", params(make()))
    assert caught.value.param == "constraint"
    assert not engine.has_work
    assert answers(engine, Constraint.choices(["a"])) == ["a"]


def test_constraints_go_with_no_option_that_hides_the_end() -> None:
    with pytest.raises(InvalidSamplingParams, match="constraint and ignore_eos exclude each other"):
        params(Constraint.regex("a"), ignore_eos=True)
    with pytest.raises(InvalidSamplingParams, match="constraint must be a Constraint, not 'a'"):
        SamplingParams(constraint="a")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0], ids=["forced", "sampled"])
def test_constraint_that_leaves_only_the_end_goes_before_min_tokens(
    overlap: bool, logprobs: int | None
) -> None:
    engine = make_engine(overlap=overlap)
    more = {"logprobs": logprobs, "min_tokens": 20, "seed": 1}
    one_choice = params(Constraint.choices(["a"]), **more)
    at_most_three = params(Constraint.regex("a{0,3}"), **more)
    b = engine.tokenizer.token_to_id("b")
    with_others = params(Constraint.regex("[a-z]{99}"), stop_token_ids=[b], logit_bias={b: 100.0}, **more)
    free = SamplingParams(temperature=0.0, max_tokens=20, min_tokens=20)
    generations = engine.generate(["x"] * 4, [one_choice, at_most_three, with_others, free])
    assert [generation.finish_reason for generation in generations] == ["stop", "stop", "stop", "length"]
    assert [generation.text for generation in generations[:2]] == ["a", "aaa"]
    assert generations[2].token_ids.index(b) == 20
    assert len(generations[3].token_ids) == 20
    assert_idle(engine)


def test_constraint_travels_to_the_engines_process() -> None:
    asked = params(Constraint.json_schema(NESTED))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=SamplingParams) == asked


def test_several_choices_of_one_request_have_a_state_each() -> None:
    (generation,) = make_engine().generate(["x"], params(Constraint.regex("[a-z]{8}"), n=6, seed=1))
    texts = [choice.text for choice in generation.choices]
    assert all(re.fullmatch("[a-z]{8}", text) for text in texts)
    assert len(set(texts)) > 1


def test_vocabulary_padded_by_the_model_is_never_sampled() -> None:
    tokenizer = embedded_tokenizer()
    padded = Grammars(tokenizer, tokenizer.vocab_size + 7, tokenizer.eos_token_ids)
    waiting = Waiting("id", Constraint.regex(".*"), np.array([], dtype=np.int32))
    mask = padded.begin([waiting]).result()["id"]
    assert mask.shape == (tokenizer.vocab_size + 7,)
    assert np.isneginf(mask[-7:]).all()
    assert tiny_model().config.vocab_size == tokenizer.vocab_size
