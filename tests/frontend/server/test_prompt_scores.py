"""The log-probabilities of an echoed prompt from a position on: what comes before it is taken from the cache."""

from itertools import pairwise
from typing import Any

import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.test_constraints import refused

PROMPT = list(range(100, 164))


def scores(server: Server, prompt: Any = PROMPT, **fields: Any) -> tuple[list[dict[str, Any]], int]:
    """The log-probabilities of each choice, and how many prompt tokens were cached."""
    answer = server.complete(prompt, **{"echo": True, "logprobs": 2, "max_tokens": 0, **fields})
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return [choice["logprobs"] for choice in answer["choices"]], cached


@pytest.mark.parametrize("start", [0, 1, 17, 48, 63, 64, 65, 10**6])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_scores_begin_at_the_position_and_are_those_of_the_whole(
    server: Server, start: int, max_tokens: int
) -> None:
    (whole,), _ = scores(server, cache_salt="whole", max_tokens=max_tokens)
    for _ in range(2):
        (part,), _ = scores(
            server, prompt_logprobs_start=start, max_tokens=max_tokens, cache_salt=f"s{start}"
        )
        assert part["tokens"] == whole["tokens"]
        assert part["text_offset"] == whole["text_offset"]
        for name in ("token_logprobs", "top_logprobs"):
            assert len(part[name]) == len(PROMPT) + max_tokens
            assert part[name][: min(start, len(PROMPT))] == [None] * min(start, len(PROMPT))
        first = max(1, min(start, len(PROMPT)))
        assert part["token_logprobs"][first:] == pytest.approx(whole["token_logprobs"][first:], abs=1e-4)
        assert None not in part["token_logprobs"][first:]


def test_what_comes_before_the_position_is_not_computed_again(server: Server) -> None:
    beginning, options = PROMPT[:48], [[7, 8], [9, 10, 11], [12]]
    server.complete(beginning, cache_salt="select", max_tokens=1)
    prompts = [beginning + option for option in options]
    before = server.metrics()
    found, cached = scores(server, prompts, prompt_logprobs_start=48, cache_salt="select", logprobs=0)
    after = server.metrics()
    assert cached == 3 * 47  # the logits behind token 47 score token 48
    name = "trunkline_computed_tokens_total"
    assert after[name] - before[name] == sum(len(prompt) - 47 for prompt in prompts)
    for option, scored in zip(options, found, strict=True):
        assert [value is None for value in scored["token_logprobs"]] == [True] * 48 + [False] * len(option)


def test_a_stream_has_the_same_scores(server: Server) -> None:
    fields = {"echo": True, "logprobs": 0, "extra_body": {"prompt_logprobs_start": 60}}
    create = server.openai().completions.create
    whole = create(model=server.name, prompt=PROMPT, temperature=0, max_tokens=3, **fields)  # type: ignore[call-overload]
    streamed = create(model=server.name, prompt=PROMPT, temperature=0, max_tokens=3, stream=True, **fields)  # type: ignore[call-overload]
    parts = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices[0].logprobs]
    values = [value for part in parts for value in part.token_logprobs]
    assert values == pytest.approx(whole.choices[0].logprobs.token_logprobs)
    offsets = [offset for part in parts for offset in part.text_offset]
    assert all(before <= after for before, after in pairwise(offsets))


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs_start": 3},
        {"prompt_logprobs_start": 3, "echo": True},
        {"prompt_logprobs_start": 3, "logprobs": 1},
        {"prompt_logprobs_start": -1, "echo": True, "logprobs": 1},
        {"prompt_logprobs_start": "3", "echo": True, "logprobs": 1},
    ],
)
def test_a_position_without_scores_or_outside_is_refused_by_name(
    server: Server, fields: dict[str, Any]
) -> None:
    error = refused(server, **fields)
    assert error["param"] == "prompt_logprobs_start"
    assert "prompt_logprobs_start" in str(error["message"])
