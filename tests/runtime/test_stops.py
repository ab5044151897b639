import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.stops import slow_cut, slow_held
from trunkline.runtime.engine.stops import StopAutomaton, StopMatcher


def feed(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[list[str], str | None]:
    """What is shown after each piece (and at the end, unless a stop came), and the stop."""
    matcher = StopMatcher(StopAutomaton(stops), include_stop=include_stop)
    shown = []
    for piece in pieces:
        text, stop = matcher.feed(piece)
        shown.append(text)
        if stop is not None:
            return shown, stop
    return [*shown, matcher.release()], None


def test_a_stop_spread_over_pieces_is_never_shown():
    assert feed(["BCDE"], ["AB", "CD", "E"]) == (["A", "", ""], "BCDE")


def test_held_back_text_is_released_as_soon_as_it_cannot_be_a_stop():
    assert feed(["BCDE"], ["AB", "CD", "F", "G"]) == (["A", "", "BCDF", "G", ""], None)


def test_only_the_longest_beginning_of_a_stop_stays_held():
    assert feed(["ABABC"], ["xABAB", "A", "BC"]) == (["x", "AB", ""], "ABABC")


def test_of_overlapping_stops_the_one_that_ends_first_counts():
    assert feed(["ABX", "BC"], ["A", "B", "C"]) == (["", "", "A"], "BC")
    assert feed(["ABX", "BC"], ["A", "B", "X"]) == (["", "", ""], "ABX")


def test_of_stops_that_end_together_the_longest_counts():
    assert feed(["C", "BC", "ABC"], ["xAB", "C"]) == (["x", ""], "ABC")


def test_a_stop_inside_of_a_longer_one_ends_first():
    assert feed(["ABCD", "BC"], ["ABCD"]) == (["A"], "BC")


def test_a_stop_can_be_the_whole_text():
    assert feed(["whole text"], ["whole", " ", "text"]) == (["", "", ""], "whole text")


def test_a_stop_that_never_completes_is_shown_at_the_end():
    assert feed(["STOP!"], ["go ST", "OP"]) == (["go ", "", "STOP"], None)


def test_the_stop_can_be_kept_in_the_text():
    assert feed(["BCDE"], ["AB", "CD", "EFG"], include_stop=True) == (["A", "", "BCDE"], "BCDE")


def test_without_stops_everything_is_shown_at_once():
    assert feed([], ["any", "thing"]) == (["any", "thing", ""], None)


def test_a_stop_is_found_twice_in_two_texts_of_one_automaton():
    automaton = StopAutomaton(["ab"])
    first, second = StopMatcher(automaton), StopMatcher(automaton)
    assert [first.feed("xa"), second.feed("b"), first.feed("b")] == [("x", None), ("b", None), ("", "ab")]


few_letters = st.text(alphabet="ab客", max_size=12)
stop_lists = st.lists(st.text(alphabet="ab客", min_size=1, max_size=5), max_size=5)


@given(stop_lists, st.lists(few_letters, max_size=8), st.booleans())
def test_pieces_show_what_a_search_of_the_whole_text_shows(
    stops: list[str], pieces: list[str], include: bool
):
    shown, stop = feed(stops, pieces, include_stop=include)
    assert ("".join(shown), stop) == slow_cut("".join(pieces), stops, include_stop=include)


@given(stop_lists, st.lists(few_letters, max_size=8))
def test_after_each_piece_exactly_the_possible_beginning_of_a_stop_is_held(
    stops: list[str], pieces: list[str]
):
    matcher = StopMatcher(StopAutomaton(stops))
    fed = shown = ""
    for piece in pieces:
        text, stop = matcher.feed(piece)
        fed, shown = fed + piece, shown + text
        if stop is not None:
            return
        assert shown + slow_held(fed, stops) == fed


def test_sixty_four_stops_cost_no_more_steps_than_one():
    """Counts automaton steps, not seconds: the goal is that the list of stops doesn't matter."""
    calls = []

    class Counting(StopAutomaton):
        def step(self, state: int, character: str) -> int:
            calls.append(character)
            return super().step(state, character)

    automaton = Counting([f"{number:04d}" + "x" * 1000 for number in range(64)])
    calls.clear()
    matcher = StopMatcher(automaton)
    for _ in range(100):
        matcher.feed("000000")
    assert len(calls) == 600


def test_the_largest_allowed_list_of_stops_is_ready_within_a_second():
    began = time.process_time()
    StopAutomaton([f"{number:02d}" * 512 for number in range(64)])
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("stops", [["aaaa"], ["aaab", "aab"]])
def test_repetitive_text_is_held_no_longer_than_a_stop(stops: list[str]):
    matcher = StopMatcher(StopAutomaton(stops))
    held = 0
    for _ in range(100):
        text, stop = matcher.feed("a")
        if stop is not None:
            return
        held += 1 - len(text)
        assert held <= 3
