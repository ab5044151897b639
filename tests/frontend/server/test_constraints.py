"""Answers that a regex, a grammar or a list of choices keeps in shape: fields of the extra body."""

import re
from typing import Any

import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.test_bodies import error_of

CHOICES = ["Thames", "Rio Grande", 'a "quoted" one', "two\nlines", "tab\there", "back\\slash", "größer 🎉"]
GRAMMAR = 'start: verb " " NUMBER\nverb: "take" | "leave"\nNUMBER: /[1-9][0-9]?/\n'
CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": r"[0-9]{3}-[a-f]{2}"},
    {"ebnf": GRAMMAR},
    {"choices": CHOICES},
    {"response_format": {"type": "json_object"}},
]


def keeps(constraint: dict[str, Any], text: str) -> bool:
    """Whether the text is what the constraint allows."""
    match constraint:
        case {"regex": pattern}:
            return re.fullmatch(pattern, text) is not None
        case {"choices": choices}:
            return text in choices
        case _:
            return re.fullmatch(r"(take|leave) [1-9][0-9]?", text) is not None


@pytest.mark.parametrize("constraint", CONSTRAINTS[:3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_keeps_to_the_constraint(
    server: Server, constraint: dict[str, Any], temperature: float, stream: bool
) -> None:
    client = server.openai()
    options: dict[str, Any] = {"model": server.name, "temperature": temperature, "seed": 3, "max_tokens": 60}
    options |= {"n": 4, "stream": stream, "extra_body": constraint}
    texts, ends = [""] * 8, {}
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "Say it."}], **options)
    plain = client.completions.create(prompt="Say it: ", **options)
    for answer in chat if stream else [chat]:
        for choice in answer.choices:
            said = choice.delta.content if stream else choice.message.content
            texts[choice.index] += said or ""
            ends[choice.index] = choice.finish_reason
    for answer in plain if stream else [plain]:
        for choice in answer.choices:
            texts[4 + choice.index] += choice.text
            ends[4 + choice.index] = choice.finish_reason
    assert set(ends.values()) == {"stop"}
    assert all(keeps(constraint, text) for text in texts), texts


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("first", "second"), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], ids=lambda number: str(number)
)
def test_two_constraints_are_refused_by_both_names(
    server: Server, path: str, first: int, second: int
) -> None:
    fields = CONSTRAINTS[first] | CONSTRAINTS[second]
    error = refused(server, path, **fields)
    assert error["param"] in fields
    assert all(name in str(error["message"]) for name in fields)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_constraint_needs_an_end_of_sequence(server: Server, constraint: dict[str, Any]) -> None:
    error = refused(server, ignore_eos=True, **constraint)
    assert error["param"] == next(iter(constraint))
    assert "ignore_eos" in str(error["message"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("regex", "("),
        ("regex", "(?=look)ahead"),
        ("regex", "[a&&b]"),
        ("regex", ""),
        ("regex", ["a"]),
        ("regex", "x" * (2**20 + 1)),
        ("ebnf", "start: nowhere"),
        ("ebnf", "no grammar at all"),
        ("ebnf", ""),
        ("choices", []),
        ("choices", "abc"),
        ("choices", ["a", ""]),
        ("choices", ["a", 1]),
        ("choices", ["x" * 1000] * 1100),
    ],
)
def test_what_is_no_constraint_is_refused_by_name(server: Server, path: str, field: str, value: Any) -> None:
    error = refused(server, path, **{field: value})
    assert str(error["param"]).startswith(field)
    assert field in str(error["message"])
    assert len(str(error["message"])) < 500


def test_a_regex_that_grows_too_large_fails_alone(server: Server) -> None:
    body = {"model": server.name, "prompt": "x", "max_tokens": 4, "regex": "a{1000000000}"}
    assert server.post("/v1/completions", body).status_code in (400, 500)


def test_a_constraint_that_leaves_only_the_end_goes_before_min_tokens(server: Server) -> None:
    for fields in ({"logprobs": 0}, {}):
        (choice,) = server.complete("x", choices=["yes"], max_tokens=20, min_tokens=20, **fields)["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("yes", "stop")


def refused(server: Server, path: str = "/v1/completions", **fields: Any) -> dict[str, object]:
    """The error to a request that has just these fields wrong."""
    asked = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    return error_of(server.post(path, {"model": server.name, "max_tokens": 4, **asked, **fields}), 400)
