import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from trunkline.runtime.engine.detokenizer import IncrementalDetokenizer
from trunkline.runtime.loading import load_tokenizer

FAMILY = "👩‍👩‍👧"


def byte_token(token_id: int) -> bytes:
    return bytes([token_id])


def deltas(data: bytes) -> list[str]:
    """The text after each byte, and at the end."""
    detokenizer = IncrementalDetokenizer(byte_token)
    return [*(detokenizer.append([byte]) for byte in data), detokenizer.finish()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ď", ["", "ď", ""]),
        ("客", ["", "", "客", ""]),
        ("a客b", ["a", "", "", "客", "b", ""]),
        ("👩", ["", "", "", "👩", ""]),
    ],
)
def test_a_character_comes_whole_with_its_last_byte(text: str, expected: list[str]):
    assert deltas(text.encode()) == expected


def test_an_emoji_of_several_characters_comes_character_by_character():
    pieces = deltas(FAMILY.encode())
    assert "".join(pieces) == FAMILY
    assert "\ufffd" not in "".join(pieces)
    assert [piece for piece in pieces if piece] == ["👩", "\u200d", "👩", "\u200d", "👧"]


def test_an_invalid_byte_gives_one_replacement_at_once():
    assert deltas("ď".encode() + b"\xffx") == ["", "ď", "\ufffd", "x", ""]


def test_a_character_that_breaks_off_gives_one_replacement_when_that_is_certain():
    assert deltas("👩".encode()[:3] + b"x") == ["", "", "", "\ufffdx", ""]


def test_a_cut_last_character_gives_one_replacement_once_at_the_end():
    detokenizer = IncrementalDetokenizer(byte_token)
    assert detokenizer.append("客".encode()[:2]) == ""
    assert [detokenizer.finish(), detokenizer.finish()] == ["\ufffd", ""]


def test_case_o23_bytes_of_three_scripts_then_an_invalid_one_then_a_cut_one():
    data = f"ď客{FAMILY}".encode() + b"\xff" + "客".encode()[:1]
    pieces = deltas(data)
    assert "".join(pieces) == data.decode("utf-8", "replace") == f"ď客{FAMILY}\ufffd\ufffd"
    assert pieces[-1] == "\ufffd"


def test_skipped_tokens_leave_no_text_even_inside_of_a_character():
    detokenizer = IncrementalDetokenizer(byte_token, skipped_ids={0xC4, 7})
    assert detokenizer.append([0xE5, 7, 0xAE, 0xC4, 0xA2]) == "客"


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=5),
            st.text(max_size=3).map(str.encode),
            st.sampled_from([b"\xed\xa0\x80", b"\xf4\x90", b"\xe0\x80", b"\xf0\x9f", b"\xc0", b"\x80"]),
        ),
        max_size=30,
    ),
    st.data(),
)
def test_pieces_together_are_the_one_shot_decode(table: list[bytes], data: st.DataObject):
    detokenizer = IncrementalDetokenizer(table.__getitem__)
    text, at = "", 0
    while at < len(table):
        count = data.draw(st.integers(1, len(table) - at))
        text += detokenizer.append(range(at, at + count))
        at += count
    assert text + detokenizer.finish() == b"".join(table).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def smollm2():
    return load_tokenizer()


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox.\n\n  12345",
        f"Přítel ďábla 客服 {FAMILY} ok",
        "def f(x):\n\treturn x  # ¿qué?",
        "\ufffd",
    ],
)
def test_a_real_tokenizers_pieces_are_its_one_shot_decode(smollm2, text: str):
    ids = smollm2.encode(text)
    detokenizer = IncrementalDetokenizer(smollm2.id_to_bytes, smollm2.special_ids)
    pieces = [detokenizer.append([int(token_id)]) for token_id in ids]
    assert "".join(pieces) + detokenizer.finish() == smollm2.decode(ids) == text


def test_a_real_tokenizers_cut_output_is_its_one_shot_decode(smollm2):
    ids = smollm2.encode(f"x{FAMILY}")
    for end in range(len(ids) + 1):
        detokenizer = IncrementalDetokenizer(smollm2.id_to_bytes, smollm2.special_ids)
        pieces = [detokenizer.append([int(token_id)]) for token_id in ids[:end]]
        assert "".join(pieces) + detokenizer.finish() == smollm2.decode(ids[:end])


def test_bytes_agree_with_the_tokenizers_library_on_sentencepiece_byte_fallback():
    pieces = ["<unk>", "▁Hello", "▁", "ď", "<0xE5>", "<0xAE>", "<0xA2>", "!"]
    backend = Backend(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    spelled = [b"<unk>", b" Hello", b" ", "ď".encode(), b"\xe5", b"\xae", b"\xa2", b"!"]
    ids = [1, 2, 4, 5, 6, 3, 7]
    detokenizer = IncrementalDetokenizer(spelled.__getitem__)
    assert [detokenizer.append([token_id]) for token_id in ids] == [" Hello", " ", "", "", "客", "ď", "!"]
    assert backend.decode(ids) == " Hello 客ď!"
