from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.oracle.stops import slow_cut
from trunkline.runtime.engine.output_text import OutputText, TextDelta
from trunkline.runtime.engine.stops import StopAutomaton
from trunkline.runtime.sampling import SamplingParams

PIECES = [b"AB", b"CD", b"E", b"<end>", b"\xe5", b"\xae", b"\xa2", b"B", b"CDE"]
END = 3


class PieceTokenizer:
    special_ids = frozenset({END})

    def id_to_bytes(self, id: int) -> bytes:
        return PIECES[id]


def make_text(**options: object) -> OutputText:
    return OutputText(PieceTokenizer(), SamplingParams(**options))  # type: ignore[arg-type]


def run(token_ids: Sequence[int], **options: object) -> tuple[str, str | None]:
    """The text and stop of these tokens, appended one by one."""
    output = make_text(**options)
    deltas = [*(output.append([token_id]) for token_id in token_ids), output.finish()]
    stops = [delta.stop for delta in deltas if delta.stop is not None]
    assert len(stops) <= 1
    return "".join(delta.text for delta in deltas), stops[0] if stops else None


def test_case_o22_a_stop_over_three_tokens():
    output = make_text(stop="BCDE")
    assert [output.append([token_id]) for token_id in (0, 1, 2)] == [
        TextDelta("A", None, 1),
        TextDelta("", None, 1),
        TextDelta("", "BCDE", 1),
    ]
    assert output.finish() == TextDelta("")


def test_several_tokens_at_once_count_up_to_the_stop():
    output = make_text(stop=["CDE"])
    assert output.append([0, 1, 2, 0, 0]) == TextDelta("AB", "CDE", 3)
    assert output.append([0]) == TextDelta("")


def test_the_end_releases_held_text_and_a_cut_character_once():
    output = make_text(stop="BCDE")
    assert output.append([0, 1, 4]) == TextDelta("A", None, 3)
    assert output.finish() == TextDelta("BCD\ufffd")
    assert output.finish() == TextDelta("")


def test_a_cut_character_at_the_end_can_complete_a_stop():
    assert run([0, 4], stop="B\ufffd") == ("A", "B\ufffd")


@pytest.mark.parametrize(("skip", "text"), [(True, "ABE"), (False, "AB<end>E")])
def test_special_tokens_are_left_out_or_spelled_out(skip: bool, text: str):
    assert run([0, END, 2], skip_special_tokens=skip) == (text, None)


def test_the_stop_string_can_stay_in_the_text():
    assert run([0, 1, 2], stop="BCD", include_stop_str_in_output=True) == ("ABCD", "BCD")


@pytest.mark.parametrize(
    ("min_tokens", "expected"),
    [
        (0, ("A", "B")),
        (1, ("ABCDA", "B")),  # the first B is in the first token
        (2, ("ABCDA", "B")),
        (3, ("ABCDABCD", None)),
    ],
)
def test_a_stop_counts_only_after_the_text_of_min_tokens(min_tokens: int, expected: tuple[str, str | None]):
    assert run([0, 1, 0, 1], stop="B", min_tokens=min_tokens) == expected


def test_a_stop_that_begins_before_min_tokens_does_not_count():
    assert run([0, 8, 7, 8], stop="BCDE", min_tokens=1) == ("ABCDE", "BCDE")


def test_text_before_min_tokens_is_shown_at_once():
    assert make_text(stop="BCDE", min_tokens=2).append([0, 1]) == TextDelta("ABCD", None, 2)


def test_choices_share_one_automaton_and_nothing_else():
    params = SamplingParams(stop="BCD", n=2)
    automaton = StopAutomaton(params.stops)
    first, second = (OutputText(PieceTokenizer(), params, automaton) for _ in range(2))
    assert [first.append([0]), second.append([1])] == [TextDelta("A", None, 1), TextDelta("CD", None, 1)]
    assert first.append([1]) == TextDelta("", "BCD", 1)


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=20),
    st.lists(st.sampled_from(["BCDE", "AB", "客", "E", "DA", "ABCDA", "\ufffd", "zz"]), max_size=3),
    st.integers(0, 6),
    st.integers(1, 4),
)
@example([4, 6, 5], [], 2, 1)
def test_streamed_text_is_the_text_of_all_tokens_cut_at_the_stop(
    token_ids: list[int], stops: list[str], min_tokens: int, step: int
):
    """Where the border of min_tokens cuts a character, that character lies behind it."""
    params = SamplingParams(stop=stops, min_tokens=min_tokens)
    output = OutputText(PieceTokenizer(), params)
    deltas = [output.append(token_ids[at : at + step]) for at in range(0, len(token_ids), step)]
    deltas.append(output.finish())
    shown = [PIECES[token_id] for token_id in token_ids if token_id != END]
    num_free = sum(token_id != END for token_id in token_ids[:min_tokens])
    whole, free = b"".join(shown).decode("utf-8", "replace"), complete_prefix(b"".join(shown[:num_free]))
    text, stop = slow_cut(whole[len(free) :], stops)
    assert "".join(delta.text for delta in deltas) == free + text
    assert [delta.stop for delta in deltas if delta.stop is not None] == ([stop] if stop is not None else [])


def complete_prefix(data: bytes) -> str:
    """The text of the bytes, without a character at the end that more bytes could still complete."""
    text = data.decode("utf-8", "replace")
    completions = (b"\xae\xa2", b"\xa2", b"\xae")
    cut = any(not (data + more).decode("utf-8", "replace").endswith("\ufffd") for more in completions)
    return text[:-1] if cut else text
