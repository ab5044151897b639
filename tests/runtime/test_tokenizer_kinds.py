"""The kinds of tokenizers a GGUF file can describe, each against its own rules."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import sentencepiece_bpe
from tests.runtime import loading_factories as tiny
from trunkline.runtime.loading import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_piece(id) for id in tokenizer.encode(text)]


def byte_level(tmp_path: Path, pre: str | None) -> Tokenizer:
    # "xyz" is a token no merge leads to; "..." and "12!" tell where words are cut.
    merges = ["1 2", "12 3", "123 4", "12 !", ". .", "h e", "Ċ Ċ", "Ġ Ġ"]
    tokens = [*tiny.CONTROL, *tiny.byte_alphabet(), *(merge.replace(" ", "") for merge in merges), "xyz"]
    values = tiny.metadata(
        tokenizer__ggml__pre=pre,
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__merges=merges,
        tokenizer__ggml__token_type=[3] * len(tiny.CONTROL) + [1] * (len(tokens) - len(tiny.CONTROL)),
    )
    return load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf", values))


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "12345", ["1", "2", "3", "4", "5"]),
        ("smollm", "a  b", ["a", " ", " ", "b"]),
        ("gpt-2", "12345", ["1234", "5"]),
        ("llama-bpe", "12345", ["123", "4", "5"]),
        ("llama3", "12345", ["123", "4", "5"]),
        ("llama-bpe", "xyz he", ["xyz", " ", "he"]),
        ("gpt-2", "xyz", ["x", "y", "z"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        ("qwen2", "e\u0301", ["\ufffd", "\ufffd"]),
        ("smollm", "e\u0301", ["e", "\ufffd", "\ufffd"]),
        ("tekken", "12xyz", ["1", "2", "xyz"]),
        ("default", "12345", ["123", "4", "5"]),
        ("default", "..!", ["..", "!"]),
        (None, "12345", ["123", "4", "5"]),
    ],
)
def test_each_pre_tokenizer_cuts_words_its_own_way(
    tmp_path: Path, pre: str | None, text: str, expected: list[str]
) -> None:
    assert pieces(byte_level(tmp_path, pre), text) == expected


SCORES = {
    piece: -float(rank)
    for rank, piece in enumerate(
        [
            "▁t",
            "he",
            "▁the",
            "in",
            "er",
            "▁a",
            "re",
            "▁w",
            "en",
            "at",
            "▁he",
            "the",
            "ing",
            "▁▁",
            "▁▁▁▁",
            "here",
        ]
    )
}
SCORES |= {letter: -100.0 - n for n, letter in enumerate("▁abcdefghinortw<>/s")}
SCORES |= {"</": -200.0, "s>": -201.0}


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    named = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, "[IMG]": USER_DEFINED}
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*named, *byte_pieces, *SCORES]
    values = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__pre": "default",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__scores": [0.0] * (len(named) + 256) + list(SCORES.values()),
        "tokenizer__ggml__token_type": [*named.values()] + [BYTE] * 256 + [NORMAL] * len(SCORES),
        "tokenizer__ggml__merges": None,
        "tokenizer__ggml__add_bos_token": None,
        "tokenizer__ggml__unknown_token_id": 0,
    }
    return tiny.metadata(**(values | changes))


@pytest.fixture
def sentencepiece(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf", sentencepiece_metadata()))


def test_sentencepiece_merges_the_best_scoring_neighbours_first(sentencepiece: Tokenizer) -> None:
    generator = random.Random(5)
    for _ in range(300):
        text = "".join(generator.choices("theinragw ", k=generator.randint(1, 30))) + generator.choice(
            ["", "ď客"]
        )
        expected = sentencepiece_bpe.encode("▁" + text.replace(" ", "▁"), SCORES)
        ids = sentencepiece.encode(text, add_bos=False)
        assert ids.tolist() == [sentencepiece.token_to_id(piece) for piece in expected], text
        assert sentencepiece.decode(ids) == text


def test_sentencepiece_adds_its_bos_unless_told_otherwise(tmp_path: Path, sentencepiece: Tokenizer) -> None:
    silent = sentencepiece_metadata(tokenizer__ggml__add_bos_token=False)

    assert sentencepiece.encode("the").tolist()[0] == sentencepiece.bos_token_id == 1
    assert load_tokenizer(tiny.write_gguf(tmp_path / "n.gguf", silent)).encode("the").tolist()[0] != 1


def test_no_merge_leads_to_a_control_token(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("a</s><s>", add_bos=False).tolist()

    assert sentencepiece.special_ids.isdisjoint(ids)
    assert sentencepiece.decode(ids) == "a</s><s>"


def test_a_token_defined_by_the_user_is_found_in_text_and_is_no_control_token(
    sentencepiece: Tokenizer,
) -> None:
    ids = sentencepiece.encode("the[IMG]in", add_bos=False).tolist()

    assert sentencepiece.token_to_id("[IMG]") in ids
    assert sentencepiece.token_to_id("[IMG]") not in sentencepiece.special_ids
    assert sentencepiece.decode(ids) == "the[IMG] in"


def test_without_a_prefix_space_text_begins_as_it_is_written(tmp_path: Path) -> None:
    values = sentencepiece_metadata(tokenizer__ggml__add_space_prefix=False)
    tokenizer = load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf", values))

    ids = tokenizer.encode("the", add_bos=False)

    assert [tokenizer.id_to_piece(id) for id in ids] == ["the"]
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


@pytest.mark.parametrize(
    ("pre", "stated", "adds"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", None, False), ("qwen2", True, True)],
)
def test_a_file_that_does_not_say_whether_to_add_a_bos_is_treated_as_its_kind_is(
    tmp_path: Path, pre: str, stated: bool | None, adds: bool
) -> None:
    values = tiny.metadata(tokenizer__ggml__pre=pre, tokenizer__ggml__add_bos_token=stated)

    assert load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf", values)).add_bos == adds


def test_a_vocabulary_may_list_a_control_token_twice(tmp_path: Path) -> None:
    values = tiny.metadata(
        tokenizer__ggml__tokens=[*tiny.TOKENS, "<|im_end|>"],
        tokenizer__ggml__token_type=[3] * len(tiny.CONTROL)
        + [1] * (len(tiny.TOKENS) - len(tiny.CONTROL))
        + [3],
    )

    tokenizer = load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf", values))

    assert tokenizer.encode("<|im_end|>", allow_special=True).tolist() == [len(tiny.TOKENS)]
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("<|im_end|>").tolist())
    assert tokenizer.eos_token_ids == {2, len(tiny.TOKENS)}


def test_further_chat_templates_are_known_by_their_names(tmp_path: Path) -> None:
    values = tiny.metadata(tokenizer__chat_template__tool_use="{{ tools | length }} tools")
    tokenizer = load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf", values))

    assert tokenizer.render_chat([], tools=[{}, {}]).text == "2 tools"
    assert tokenizer.render_chat([]).text == "<|im_start|>assistant\n"


def test_a_generation_also_ends_at_the_token_that_ends_a_turn(tmp_path: Path) -> None:
    unsaid = tiny.metadata(tokenizer__ggml__eos_token_id=0)
    said = tiny.metadata(tokenizer__ggml__eos_token_id=0, tokenizer__ggml__eot_token_id=1)

    assert load_tokenizer(tiny.write_gguf(tmp_path / "a.gguf", unsaid)).eos_token_ids == {0, 2}
    assert load_tokenizer(tiny.write_gguf(tmp_path / "b.gguf", said)).eos_token_ids == {0, 1}
