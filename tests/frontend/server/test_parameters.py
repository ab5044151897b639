"""Parameters: each has the range that the documentation states, and a refusal names field and value."""

import math
from typing import Any

import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.test_bodies import error_of
from tests.frontend.server.test_prompts import VOCAB_SIZE, refused, refused_chat, user
from tests.frontend.server.tiny_folder import MAX_POSITIONS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("temperature", -1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("min_p", -0.1),
        ("frequency_penalty", 3),
        ("frequency_penalty", -3),
        ("presence_penalty", 3),
        ("presence_penalty", -3),
        ("repetition_penalty", 0),
        ("repetition_penalty", 2.5),
        ("n", 0),
        ("n", 1000),
        ("n", "2"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 65),
        ("stop", "x" * 100_000),
        ("stop", [1]),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", "x"),
        ("logit_bias", {str(VOCAB_SIZE): 1}),
        ("logit_bias", {"5": 1000}),
        ("logit_bias", {"5": -1000}),
        ("logit_bias", {"5": "NaN"}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {str(token): 1 for token in range(20_000)}),
        ("logit_bias", [1]),
        ("min_tokens", -1),
        ("min_tokens", 2),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("seed", -(2**63) - 1),
        ("seed", 2**64),
        ("seed", 1.5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("echo", 1),
        ("best_of", 2),
        ("best_of", 0),
        ("cache_salt", ""),
        ("cache_salt", "x" * 257),
        ("priority", "high"),
        ("priority", 10**9),
        ("ignore_eos", "no"),
        ("trunkline", {"cash": True}),
        ("response_format", {"type": "grammar"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", {"type": "json_object", "json_schema": {"schema": {}}}),
        ("response_format", {}),
        ("suffix", "end"),
        ("model", None),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(server: Server, field: str, value: Any) -> None:
    error = refused(server, **{field: value})
    assert str(error["param"]).startswith(field)
    assert field in str(error["message"])
    assert len(str(error["message"])) < 300


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
def test_what_chat_can_not_do_is_refused_by_name(server: Server, fields: dict[str, Any], param: str) -> None:
    error = refused_chat(server, [user("x")], **fields)
    assert error["param"] == param
    assert param in str(error["message"])


@pytest.mark.parametrize(
    "fields", [{"tools": [], "tool_choice": "none"}, {"response_format": {"type": "text"}}, {"tools": None}]
)
def test_asking_for_nothing_special_is_fine(server: Server, fields: dict[str, Any]) -> None:
    server.chat("x", **fields)


def test_equal_limits_of_both_names_are_one_limit(server: Server) -> None:
    answer = server.chat("x", max_tokens=3, max_completion_tokens=3, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 3


def test_no_limit_or_one_above_the_context_is_the_rest_of_the_context(server: Server) -> None:
    prompt = [7] * (MAX_POSITIONS - 5)
    for limit in (None, 10**12):
        answer = server.complete(prompt, max_tokens=limit, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["trunkline"] == {"max_tokens": 5}


def test_no_new_token_is_possible_only_with_an_echo(server: Server) -> None:
    answer = server.complete("Hello there", max_tokens=0, echo=True)
    assert answer["choices"][0]["text"] == "Hello there"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-4, 2])
def test_extreme_temperatures_give_text(server: Server, temperature: float) -> None:
    answer = server.complete("x", temperature=temperature, seed=1, logprobs=1, max_tokens=3)
    assert all(math.isfinite(value) for value in answer["choices"][0]["logprobs"]["token_logprobs"])


def test_a_forbidden_token_has_a_finite_logprob_and_is_not_drawn(server: Server) -> None:
    first = server.complete("x", max_tokens=1, logprobs=1)
    token = server.post("/tokenize", {"prompt": first["choices"][0]["text"]}).json()["tokens"][0]
    other = server.complete("x", max_tokens=1, logprobs=5, logit_bias={str(token): -100})
    assert other["choices"][0]["text"] != first["choices"][0]["text"]
    assert all(value >= -9999 for value in other["choices"][0]["logprobs"]["top_logprobs"][0].values())


@pytest.mark.parametrize("top_k", [0, -1, VOCAB_SIZE * 2])
def test_top_k_may_be_off_or_more_than_there_is(server: Server, top_k: int) -> None:
    server.complete("x", top_k=top_k)


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**63 - 1])
def test_any_int64_is_a_seed_and_a_seed_decides(server: Server, seed: int) -> None:
    one, other = (
        server.complete("x", temperature=1, seed=seed, max_tokens=8)["choices"][0]["text"] for _ in range(2)
    )
    assert one == other


def test_choices_differ_count_the_prompt_once_and_repeat_with_the_seed(server: Server) -> None:
    first = server.complete("Once upon a time", n=3, temperature=1, seed=5, max_tokens=6, ignore_eos=True)
    again = server.complete("Once upon a time", n=3, temperature=1, seed=5, max_tokens=6, ignore_eos=True)
    texts = [choice["text"] for choice in first["choices"]]
    assert len(set(texts)) == 3
    assert texts == [choice["text"] for choice in again["choices"]]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert first["usage"]["prompt_tokens"] == server.complete("Once upon a time")["usage"]["prompt_tokens"]
    assert first["usage"]["completion_tokens"] == 18


def test_greedy_choices_may_be_equal(server: Server) -> None:
    answer = server.complete("x", n=3, best_of=3)
    assert len({choice["text"] for choice in answer["choices"]}) == 1


def test_several_prompts_are_answered_in_their_order(server: Server) -> None:
    prompts = ["red", "green", "blue"]
    together = server.complete(prompts, n=2)
    alone = [server.complete(prompt)["choices"][0]["text"] for prompt in prompts for _ in range(2)]
    assert [choice["text"] for choice in together["choices"]] == alone
    assert refused(server, prompt=["a"] * 65, n=2)["param"] == "n"
    assert refused(server, prompt=["a"] * 129)["param"] == "prompt"


def test_nothing_stops_an_answer_before_min_tokens(server: Server) -> None:
    text = server.complete("x", max_tokens=8, ignore_eos=True)["choices"][0]["text"]
    early = server.complete("x", max_tokens=8, ignore_eos=True, stop=text[0])
    assert early["choices"][0]["text"] == ""
    late = server.complete("x", max_tokens=8, ignore_eos=True, stop=text[0], min_tokens=6)
    assert late["usage"]["completion_tokens"] >= 6


def test_64_stop_strings_of_1_kb_are_taken(server: Server) -> None:
    server.complete("x", stop=[f"{number:04}" * 256 for number in range(64)])


@pytest.mark.parametrize(("model", "status"), [("nobody", 404), ("", 404), ("x" * 10_000, 404)])
def test_an_unknown_model_is_404(server: Server, model: str, status: int) -> None:
    for path, rest in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [user("x")]}),
    ):
        error = error_of(server.post(path, {"model": model, **rest}), status)
        assert (error["param"], error["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_model_at_all_is_400(server: Server, path: str) -> None:
    error = error_of(server.post(path, {"prompt": "x", "messages": [user("x")]}), 400)
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


def test_embeddings_are_refused_by_name(server: Server) -> None:
    error = error_of(server.post("/v1/embeddings", {"model": server.name, "input": "x"}), 400)
    assert "embeddings" in str(error["message"])
