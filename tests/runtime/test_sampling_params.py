import math
import pickle
from typing import Any

import msgspec
import numpy as np
import pytest

from trunkline.runtime.errors import RequestError
from trunkline.runtime.sampling import InvalidSamplingParams, SamplingParams

REFUSED: list[tuple[str, Any, str]] = [
    ("max_tokens", 0, "max_tokens must be an integer of at least 1, not 0"),
    ("max_tokens", -1, "max_tokens must be an integer of at least 1, not -1"),
    ("max_tokens", 1.5, "max_tokens must be an integer of at least 1, not 1.5"),
    ("max_tokens", "5", "max_tokens must be an integer of at least 1, not '5'"),
    ("max_tokens", True, "max_tokens must be an integer of at least 1, not True"),
    ("min_tokens", -1, "min_tokens must be an integer of at least 0, not -1"),
    ("min_tokens", None, "min_tokens must be an integer of at least 0, not None"),
    ("temperature", math.nan, "temperature must be a number in [0, 2], not nan"),
    ("temperature", math.inf, "temperature must be a number in [0, 2], not inf"),
    ("temperature", -1, "temperature must be a number in [0, 2], not -1"),
    ("temperature", 2.1, "temperature must be a number in [0, 2], not 2.1"),
    ("temperature", True, "temperature must be a number in [0, 2], not True"),
    ("temperature", "1", "temperature must be a number in [0, 2], not '1'"),
    ("temperature", 10**400, "temperature must be a number in [0, 2], not an integer of 1329 bits"),
    ("top_k", -2, "top_k must be an integer of at least -1, not -2"),
    ("top_p", 0, "top_p must be a number in (0, 1], not 0"),
    ("top_p", 1.1, "top_p must be a number in (0, 1], not 1.1"),
    ("top_p", math.nan, "top_p must be a number in (0, 1], not nan"),
    ("min_p", 2, "min_p must be a number in [0, 1], not 2"),
    ("repetition_penalty", 0.0, "repetition_penalty must be a number in [0.01, 2], not 0.0"),
    ("repetition_penalty", 3, "repetition_penalty must be a number in [0.01, 2], not 3"),
    ("frequency_penalty", 3, "frequency_penalty must be a number in [-2, 2], not 3"),
    ("presence_penalty", -3, "presence_penalty must be a number in [-2, 2], not -3"),
    ("logit_bias", [1], "logit_bias must be a mapping of token ids to numbers, not [1]"),
    ("logit_bias", {"5": 1}, "logit_bias key must be an integer of at least 0, not '5'"),
    ("logit_bias", {-1: 1}, "logit_bias key must be an integer of at least 0, not -1"),
    ("logit_bias", {5: 1000}, "logit_bias[5] must be a number in [-100, 100], not 1000"),
    ("logit_bias", {5: math.nan}, "logit_bias[5] must be a number in [-100, 100], not nan"),
    ("logit_bias", dict.fromkeys(range(1025), 0), "logit_bias: 1025 ids, at most 1024 are allowed"),
    ("seed", 2**64, f"seed must be an integer in [{-(2**63)}, {2**63 - 1}], not {2**64}"),
    ("seed", 1.5, f"seed must be an integer in [{-(2**63)}, {2**63 - 1}], not 1.5"),
    ("stop", "", "stop[0] must be a string that is not empty, not ''"),
    ("stop", ["a", ""], "stop[1] must be a string that is not empty, not ''"),
    ("stop", [7], "stop[0] must be a string that is not empty, not 7"),
    ("stop", None, "stop must be a string or a list of strings, not None"),
    ("stop", b"ab", "stop must be a string or a list of strings, not b'ab'"),
    ("stop", ["a"] * 65, "stop: 65 strings, at most 64 are allowed"),
    ("stop", ["ok", "é" * 513], "stop[1] has 1026 bytes, at most 1024 are allowed"),
    ("stop", ["ab\ud83d"], "stop[0] has a lone surrogate at position 2"),
    ("stop_token_ids", 7, "stop_token_ids must be a list of token ids, not 7"),
    ("stop_token_ids", [-1], "stop_token_ids[0] must be an integer of at least 0, not -1"),
    ("stop_token_ids", [1.0], "stop_token_ids[0] must be an integer of at least 0, not 1.0"),
    ("stop_token_ids", range(1025), "stop_token_ids: 1025 ids, at most 1024 are allowed"),
    ("ignore_eos", 1, "ignore_eos must be True or False, not 1"),
    ("skip_special_tokens", None, "skip_special_tokens must be True or False, not None"),
    ("include_stop_str_in_output", "no", "include_stop_str_in_output must be True or False, not 'no'"),
    ("logprobs", 21, "logprobs must be an integer in [0, 20], not 21"),
    ("logprobs", True, "logprobs must be an integer in [0, 20], not True"),
    ("prompt_logprobs", -1, "prompt_logprobs must be an integer in [0, 20], not -1"),
    ("n", 0, "n must be an integer in [1, 128], not 0"),
    ("n", 129, "n must be an integer in [1, 128], not 129"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=lambda item: repr(item)[:40])
def test_a_value_out_of_range_is_refused_with_name_range_and_value(name: str, value: Any, message: str):
    with pytest.raises(InvalidSamplingParams) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == message
    assert caught.value.param == name
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, ["y" * 100_000] * 3, "line\nbreak", 10**5000],
    ids=["long", "list", "lines", "huge"],
)
def test_a_message_is_one_short_line_whatever_was_sent(value: Any):
    with pytest.raises(InvalidSamplingParams) as caught:
        SamplingParams(max_tokens=1, temperature=value)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_the_ends_of_every_range_are_allowed():
    SamplingParams(temperature=0, top_p=1, min_p=1, frequency_penalty=-2, presence_penalty=2, top_k=0, n=1)
    SamplingParams(temperature=2, top_p=1e-12, min_p=0, frequency_penalty=2, presence_penalty=-2, n=128)
    SamplingParams(seed=-(2**63), logprobs=0, prompt_logprobs=20, max_tokens=10**12, repetition_penalty=2)
    SamplingParams(seed=2**63 - 1, stop=["s" * 1024] * 64, logit_bias={0: -100, 1: 100}, top_k=10**9)


def test_more_min_tokens_than_max_tokens_are_refused():
    with pytest.raises(InvalidSamplingParams, match=r"^min_tokens 3 is above max_tokens 2$") as caught:
        SamplingParams(min_tokens=3, max_tokens=2)
    assert caught.value.param == "min_tokens"


def test_values_are_normalised_once():
    params = SamplingParams(
        temperature=1, top_k=np.int64(7), stop="end", stop_token_ids={3}, logit_bias={np.int32(4): 2}
    )
    assert (params.temperature, type(params.temperature)) == (1.0, float)
    assert (params.top_k, type(params.top_k)) == (7, int)
    assert params.stops == ("end",)
    assert params.stop_token_ids == (3,)
    assert params.logit_bias == {4: 2.0}


def test_a_later_change_of_the_given_bias_does_not_reach_the_params():
    bias = {1: 5.0}
    params = SamplingParams(logit_bias=bias)
    bias[2] = -100.0
    assert params.logit_bias == {1: 5.0}


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 9e-7}, True),
        ({"top_k": 1}, True),
        ({"temperature": 1e-6}, False),
    ],
)
def test_tiny_temperatures_and_top_k_one_are_greedy(options: dict[str, Any], greedy: bool):
    assert SamplingParams(**options).is_greedy is greedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stop_token_ids": [99, 100]},
            "stop_token_ids: token id 100 is outside of the vocabulary, [0, 100)",
        ),
        (
            {"logit_bias": {2**31: 1}},
            "logit_bias: token id 2147483648 is outside of the vocabulary, [0, 100)",
        ),
    ],
)
def test_ids_out_of_the_vocabulary_are_refused(options: dict[str, Any], message: str):
    params = SamplingParams(**options)
    with pytest.raises(InvalidSamplingParams) as caught:
        params.validate_for(100)
    assert str(caught.value) == message
    assert caught.value.param == next(iter(options))


def test_ids_in_the_vocabulary_are_accepted():
    SamplingParams(stop_token_ids=[0, 99], logit_bias={99: 1}).validate_for(100)


def test_params_survive_pickle_and_msgpack_after_use():
    params = SamplingParams(logit_bias={5: -100}, stop=["a", "b"], stop_token_ids=[3], seed=-5, logprobs=2)
    assert params.bias_arrays[1].tolist() == [-math.inf]
    assert pickle.loads(pickle.dumps(params)) == params
    sent = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(sent, type=SamplingParams) == params


def test_an_error_keeps_its_param_through_pickle():
    with pytest.raises(InvalidSamplingParams) as caught:
        SamplingParams(n=0)
    assert pickle.loads(pickle.dumps(caught.value)).param == "n"
