"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["StopAutomaton", "StopMatcher"]

ROOT = 0


class StopAutomaton:
    """All stop strings in one automaton (Aho and Corasick, 1975): one stop or 64, a step costs the same.

    A state is the longest end of the text that is the beginning of a stop. Immutable once built, so the
    choices of one request share it. O(characters of all stops) to build and to keep.
    """

    def __init__(self, stops: Collection[str]) -> None:
        """`stops`: strings that are not empty; none at all is fine."""
        self.depths = [0]
        # One flat dict instead of one in each state: 64 stops can have 65,536 states.
        self._children: dict[tuple[int, str], int] = {}
        self._fallback = [ROOT]
        self._longest_stop = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character; O(1) amortised over a text."""
        while True:
            child = self._children.get((state, character))
            if child is not None:
                return child
            if state == ROOT:
                return ROOT
            state = self._fallback[state]

    def stop_length(self, state: int) -> int:
        """Length of the longest stop that ends the text in this state, 0 if none does."""
        return self._longest_stop[state]

    def _insert(self, stop: str) -> None:
        state = ROOT
        for character in stop:
            child = self._children.setdefault((state, character), len(self.depths))
            if child == len(self.depths):
                self.depths.append(self.depths[state] + 1)
                self._fallback.append(ROOT)
                self._longest_stop.append(0)
            state = child
        self._longest_stop[state] = len(stop)

    def _link(self) -> None:
        """Falls back, from each state, to the next shorter end of the text that begins a stop."""
        by_depth = sorted(self._children.items(), key=lambda edge: self.depths[edge[1]])
        for (parent, character), state in by_depth:
            if parent != ROOT:
                self._fallback[state] = self.step(self._fallback[parent], character)
            if not self._longest_stop[state]:
                self._longest_stop[state] = self._longest_stop[self._fallback[state]]


class StopMatcher:
    """Passes a text on, up to the first stop string in it, and holds back what may still become one.

    The stop that ends earliest counts; of several that end at the same character the longest, so that no
    part of a stop is ever shown. Held back is exactly the longest end of the text that begins a stop.
    """

    def __init__(self, automaton: StopAutomaton, *, include_stop: bool = False) -> None:
        """`include_stop`: the stop itself is passed on as well."""
        self._automaton = automaton
        self._include_stop = include_stop
        self._state = ROOT
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What can be shown now, and the stop if one was completed; nothing may be fed after it."""
        whole = self._held + text
        automaton, state = self._automaton, self._state
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = automaton.step(state, character)
            length = automaton.stop_length(state)
            if length:
                self._state, self._held = ROOT, ""
                return whole[: end if self._include_stop else end - length], whole[end - length : end]
        shown = len(whole) - automaton.depths[state]
        self._state, self._held = state, whole[shown:]
        return whole[:shown], None

    def release(self) -> str:
        """What was held back, at the end of the text."""
        held, self._state, self._held = self._held, ROOT, ""
        return held
