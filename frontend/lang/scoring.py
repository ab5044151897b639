"""How `select` chooses: three methods over the log-probabilities of each choice's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .parts import SelectMethod

__all__ = ["ChoiceLogprobs", "Decision", "decide"]


@dataclass(frozen=True, slots=True)
class ChoiceLogprobs:
    """A choice's tokens and the log-probability of each behind the prompt, and behind no prompt where that was asked."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] | None = None

    @property
    def mean(self) -> float:
        return sum(self.logprobs) / len(self.logprobs)


@dataclass(frozen=True, slots=True)
class Decision:
    """The place of the choice taken, and every choice's score, by place: higher is better."""

    index: int
    scores: tuple[float, ...]


def decide(method: SelectMethod, choices: Sequence[ChoiceLogprobs]) -> Decision:
    """The best of the choices, the first of equals.

    The scores of `greedy_token` are the numbers of tokens for which a choice stayed among the likeliest.
    """
    same = _alike(choices)
    if method == "greedy_token":
        scores = _greedy(same)
    elif method == "unconditional_normalized":
        scores = [choice.mean - _unconditional_mean(choice) for choice in same]
    else:
        scores = [choice.mean for choice in same]
    return Decision(max(range(len(scores)), key=lambda index: (scores[index], -index)), tuple(scores))


def _alike(choices: Sequence[ChoiceLogprobs]) -> list[ChoiceLogprobs]:
    """Tokens that follow the same tokens get one value, that of the first choice: rounding must not break ties."""
    known: dict[tuple[int, ...], float] = {}
    equal = []
    for choice in choices:
        ids = choice.token_ids
        values = tuple(
            known.setdefault(ids[: place + 1], value) for place, value in enumerate(choice.logprobs)
        )
        equal.append(ChoiceLogprobs(ids, values, choice.unconditional))
    return equal


def _greedy(choices: Sequence[ChoiceLogprobs]) -> list[float]:
    """For each choice the number of places at which it was still among the likeliest."""
    longest = max(len(choice.logprobs) for choice in choices)
    survived = [0] * len(choices)
    left = list(range(len(choices)))
    for place in range(longest):
        values = [_value_at(choices[index], place) for index in left]
        best = max(values)
        left = [index for index, value in zip(left, values, strict=True) if value == best]
        for index in left:
            survived[index] += 1
    return [float(count) for count in survived]


def _value_at(choice: ChoiceLogprobs, place: int) -> float:
    return choice.logprobs[place] if place < len(choice.logprobs) else choice.mean


def _unconditional_mean(choice: ChoiceLogprobs) -> float:
    assert choice.unconditional is not None, "the backend was asked for unconditional scores"
    return sum(choice.unconditional) / len(choice.unconditional)
