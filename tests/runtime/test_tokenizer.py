"""The face of every tokenizer, on the embedded model's vocabulary and on tiny ones."""

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import loading_factories as tiny
from trunkline.runtime.errors import RequestError, TokenizerError
from trunkline.runtime.loading import Tokenizer, load_tokenizer

# Texts in several scripts with the ids the reference makes of them; see "made_by" in the file.
GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "smollm2_tokens.json").read_text())


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return load_tokenizer()


@pytest.fixture
def tiny_tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf"))


@pytest.mark.parametrize("case", GOLDEN["texts"], ids=lambda case: case["name"])
def test_the_embedded_tokenizer_agrees_with_the_reference_and_comes_back(
    smollm: Tokenizer, case: dict[str, Any]
) -> None:
    ids = smollm.encode(case["text"])

    assert ids.dtype == "int32"
    assert ids.tolist() == case["ids"]
    assert smollm.decode(ids) == case["text"]


def test_facts_of_the_embedded_model(smollm: Tokenizer) -> None:
    assert smollm.vocab_size == 49152
    assert (smollm.bos_token_id, smollm.pad_token_id, smollm.eos_token_ids) == (1, 2, {2})
    assert smollm.special_ids == set(range(17))
    assert not smollm.add_bos
    assert smollm.has_chat_template


def test_digits_are_split_one_by_one(smollm: Tokenizer) -> None:
    assert [smollm.id_to_piece(id) for id in smollm.encode("in 2024")] == ["in", " ", "2", "0", "2", "4"]


def test_no_text_makes_a_control_token(smollm: Tokenizer) -> None:
    names = [smollm.id_to_piece(id) for id in sorted(smollm.special_ids)]
    texts = [
        *names,
        "".join(names),
        " ".join(names),
        "<|im_end|>\n<|im_start|>system",
        "<|im_<|im_end|>end|>",
    ]

    for text in texts:
        ids = smollm.encode(text)
        assert smollm.special_ids.isdisjoint(ids.tolist()), text
        assert smollm.decode(ids) == text


def test_control_tokens_come_when_they_are_asked_for(smollm: Tokenizer) -> None:
    text = "<|im_start|>user\nHi<|im_end|>"

    ids = smollm.encode(text, allow_special=True).tolist()

    assert [id for id in ids if id in smollm.special_ids] == [1, 2]
    assert ids == [1, *smollm.encode("user\nHi").tolist(), 2]
    assert smollm.decode(ids, skip_special=False) == text
    assert smollm.decode(ids) == "user\nHi"


@pytest.mark.parametrize("named", [False, True], ids=["plain text", "text names the BOS"])
@pytest.mark.parametrize("allow_special", [False, True])
def test_there_is_one_bos_at_the_start(tmp_path: Path, named: bool, allow_special: bool) -> None:
    values = tiny.metadata(tokenizer__ggml__bos_token_id=0, tokenizer__ggml__add_bos_token=True)
    tokenizer = load_tokenizer(tiny.write_gguf(tmp_path / "m.gguf", values))
    text = "<|bos|>a" if named else "a"

    assert tokenizer.encode(text, allow_special=allow_special).tolist().count(0) == 1
    assert tokenizer.encode(text, allow_special=allow_special).tolist()[0] == 0
    assert tokenizer.encode(text, allow_special=allow_special, add_bos=False).tolist().count(0) == (
        named and allow_special
    )


def test_a_bos_can_be_asked_for_but_not_of_a_model_without(tmp_path: Path, smollm: Tokenizer) -> None:
    without = load_tokenizer(
        tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata(tokenizer__ggml__bos_token_id=None))
    )

    assert smollm.encode("a", add_bos=True).tolist() == [1, *smollm.encode("a").tolist()]
    with pytest.raises(TokenizerError, match="the model has none"):
        without.encode("a", add_bos=True)


@pytest.mark.parametrize("text", ["ď", "客", "👩‍👩‍👧"])
def test_the_bytes_of_tokens_add_up_where_their_pieces_are_no_characters(
    tiny_tokenizer: Tokenizer, text: str
) -> None:
    ids = tiny_tokenizer.encode(text).tolist()

    assert len(ids) == len(text.encode())
    assert "\ufffd" in tiny_tokenizer.id_to_piece(ids[0])
    assert b"".join(map(tiny_tokenizer.id_to_bytes, ids)) == text.encode()
    assert tiny_tokenizer.decode(ids) == text


def test_only_what_is_no_utf_8_is_replaced_and_piecewise_decoding_agrees(tiny_tokenizer: Tokenizer) -> None:
    first_byte_id = len(tiny.CONTROL)
    data = "ď客👩‍👩‍👧".encode() + b"\xffx" + "客".encode()[:2]
    ids = [first_byte_id + byte for byte in data]

    text = tiny_tokenizer.decode(ids)

    assert text == "ď客👩‍👩‍👧\ufffdx\ufffd"
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    deltas = [decoder.decode(tiny_tokenizer.id_to_bytes(id)) for id in ids] + [decoder.decode(b"", True)]
    assert "".join(deltas) == text


def test_ids_without_a_token_are_empty_and_negative_ones_are_refused(tiny_tokenizer: Tokenizer) -> None:
    assert tiny_tokenizer.id_to_bytes(10**6) == b""
    with pytest.raises(TokenizerError, match="-1 is negative"):
        tiny_tokenizer.id_to_bytes(-1)
    with pytest.raises(TokenizerError, match="no token 'zebra'"):
        tiny_tokenizer.token_to_id("zebra")


def test_a_lone_surrogate_is_refused_with_its_place(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"U\+D83D at character 2"):
        tiny_tokenizer.encode("ab\ud83d")


def test_long_runs_are_no_trouble(smollm: Tokenizer) -> None:
    for text in (" " * 300_000, "<" * 300_000, "<|im_end|>" * 30_000, "🙂" * 50_000, " \n" * 100_000):
        assert smollm.decode(smollm.encode(text)) == text
