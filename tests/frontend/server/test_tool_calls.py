"""Calls in the model's own text: every answer under the grammar is parsed, however it is cut."""

import random

import numpy as np
import pytest

from tests.frontend.server.toolbox import SCHEMAS, TOOLS, assert_valid
from tests.runtime.engines import embedded_tokenizer
from trunkline.frontend.server.tool_calls import Calling, CallParser, Piece, spelled_call
from trunkline.frontend.server.tools import Tool
from trunkline.runtime.sampling import Constraint, Grammars, Waiting

FUNCTIONS = tuple(Tool.model_validate(tool).function for tool in TOOLS)
AUTO = Calling(FUNCTIONS, must=False, named=False, several=True)
FORCED = Calling(FUNCTIONS, must=True, named=False, several=True)
ARGUMENTS = '{"city": "}\\n</tool_call>", "limit": 5}'
CALL = spelled_call("find", ARGUMENTS)
SHORT = spelled_call("find", '{"city": "}\\n</to", "limit": 5}')
OTHER = spelled_call("now", "{}")


def joined(pieces: list[Piece]) -> list[Piece]:
    """Successive pieces of one kind put together."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].kind == piece.kind != "call":
            found[-1] = Piece(piece.kind, found[-1].text + piece.text)
        else:
            found.append(piece)
    return found


def parsed(calling: Calling, parts: list[str]) -> tuple[list[Piece], bool]:
    parser = CallParser(calling)
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.finish()
    return joined(pieces), parser.complete


@pytest.mark.parametrize(
    ("calling", "text", "expected"),
    [
        (FORCED, CALL, [Piece("call", "find"), Piece("arguments", ARGUMENTS)]),
        (AUTO, f"Sure.\n{OTHER}", [Piece("prose", "Sure."), Piece("call", "now"), Piece("arguments", "{}")]),
        (
            AUTO,
            f"{OTHER}\n{CALL}",
            [
                Piece("call", "now"),
                Piece("arguments", "{}"),
                Piece("call", "find"),
                Piece("arguments", ARGUMENTS),
            ],
        ),
        (AUTO, "a\n\n" + OTHER, [Piece("prose", "a\n"), Piece("call", "now"), Piece("arguments", "{}")]),
        (AUTO, "no \n<tool call\n<tool_cal", [Piece("prose", "no \n<tool call\n<tool_cal")]),
    ],
)
def test_an_answer_is_parsed_the_same_wherever_it_is_cut(
    calling: Calling, text: str, expected: list[Piece]
) -> None:
    whole = (expected, expected[-1].kind == "arguments")
    assert parsed(calling, list(text)) == whole
    for at in range(len(text) + 1):
        assert parsed(calling, [text[:at], text[at:]]) == whole


def test_a_call_that_is_cut_keeps_what_it_has_and_is_not_complete() -> None:
    before = CALL.index(ARGUMENTS)
    for end in range(len(CALL)):
        pieces, complete = parsed(FORCED, [CALL[:end]])
        assert not complete
        arguments = "".join(piece.text for piece in pieces if piece.kind == "arguments")
        assert arguments == ARGUMENTS[: max(0, end - before)]


@pytest.mark.parametrize(
    ("calling", "beginning"), [(FORCED, ""), (AUTO, "Sure.\n<tool_call>"), (AUTO, "<tool_call>")]
)
def test_whatever_is_sampled_under_the_grammar_is_calls_that_validate(
    calling: Calling, beginning: str
) -> None:
    tokenizer = embedded_tokenizer()
    grammars = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    constraint = calling.constraint()
    called = set()
    for seed in range(40):
        draw = random.Random(seed)
        output = tokenizer.encode(beginning, add_bos=False).tolist() if beginning else []
        while not output or output[-1] not in tokenizer.eos_token_ids:
            waiting = Waiting(f"{seed}", constraint, np.array(output, dtype=np.int32))
            begun = grammars.begin([waiting])
            assert begun is not None
            allowed = np.flatnonzero(begun.result()[waiting.id] == 0)
            token = int(draw.choice(allowed))
            output += [token, *grammars.forced(waiting, token)]
        text = tokenizer.decode(output[:-1])
        at = draw.randrange(len(text))
        pieces, complete = parsed(calling, [text[:at], text[at:]])
        assert complete
        calls = [piece for piece in pieces if piece.kind != "prose"]
        assert [piece.kind for piece in calls] == ["call", "arguments"] * (len(calls) // 2)
        for name, arguments in zip(calls[::2], calls[1::2], strict=True):
            assert_valid(name.text, arguments.text)
            called.add(name.text)
    assert called == set(SCHEMAS)


@pytest.mark.parametrize("text", ["", "Hello <tool you\n", "größer 🎉", SHORT, f"x\n{SHORT}\n{OTHER}"])
def test_free_answers_are_free_until_they_call(text: str) -> None:
    assert allows(AUTO.constraint(), text)


@pytest.mark.parametrize(
    "text", [f"{SHORT} and more", "a <tool_call> is", f"{SHORT}\n", spelled_call("who", "{}")]
)
def test_what_begins_a_call_is_one(text: str) -> None:
    assert not allows(AUTO.constraint(), text)


def test_one_call_is_all_where_there_may_not_be_several() -> None:
    once = Calling(FUNCTIONS, must=True, named=True, several=False).constraint()
    assert allows(once, SHORT)
    assert not allows(once, f"{SHORT}\n{SHORT}")


def allows(constraint: Constraint, text: str) -> bool:
    """Whether an answer may be this text, and end there."""
    tokenizer = embedded_tokenizer()
    grammars = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    ids = tokenizer.encode(text, add_bos=False)
    [end] = tokenizer.eos_token_ids
    for number, token in enumerate([*ids.tolist(), end]):
        begun = grammars.begin([Waiting("only", constraint, ids[:number])])
        assert begun is not None
        if begun.result()["only"][token] != 0:
            return False
    return True
