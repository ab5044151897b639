"""How long a step will take, learned from the steps before, and what of it is left for prompts."""

import math
from dataclasses import dataclass

import numpy as np

# Features are scaled so that the coefficients are of one size, which keeps the recursion well conditioned.
_TOKENS = 64.0
_ATTENDED = 65536.0
_FORGETTING = 0.98
_PRIOR = 1e3
_FIRST_TOKENS = 32


class StepCostModel:
    """Step time a + b * tokens + c * attended positions, by recursive least squares with directional
    forgetting.

    Coefficients are never below zero. A measurement is believed to four times the usual deviation,
    so that one hiccup does not bend the model. Nothing is predicted far outside of what was measured:
    `max_tokens` is twice the largest step so far, and starts at 32. A larger step is believed whole, and what
    was wrong about it says nothing of the usual deviation. Times are in seconds; O(1) each.
    """

    def __init__(self) -> None:
        self._weights = np.zeros(3)
        self._covariance = np.eye(3) * _PRIOR
        self._coefficients = (0.0, 0.0, 0.0)
        self.deviation = 0.0
        self.num_observations = 0
        self.max_tokens = _FIRST_TOKENS

    def observe(self, tokens: int, attended: int, seconds: float) -> None:
        """Learn from one measured step."""
        features = np.array([1.0, tokens / _TOKENS, attended / _ATTENDED])
        error = seconds - float(features.dot(self._weights))
        is_new = tokens > self.max_tokens
        if self.num_observations >= 8 and not is_new:
            bound = max(4.0 * self.deviation, 0.1 * abs(seconds - error))
            error = max(-bound, min(bound, error))
            self.deviation += 0.05 * (abs(error) - self.deviation)
        elif self.num_observations >= 3 and not is_new:
            self.deviation = max(self.deviation, abs(error))
        gain = self._covariance.dot(features)
        known = float(features.dot(gain))
        # A weight below zero, kept as it is, would have to be made up for before the model could follow.
        self._weights = np.maximum(self._weights + gain * (error / (1.0 + known)), 0.0)
        # What this step says nothing about is not forgotten: its variance would grow without end while steps are all
        # alike, and the first hiccup would be put down to it (directional forgetting: Kulhavy, 1987).
        kept = _FORGETTING - (1.0 - _FORGETTING) / known
        self._covariance = self._covariance - gain[:, None] * gain * (kept / (1.0 + kept * known))
        constant, per_token, per_attended = self._weights.tolist()
        self._coefficients = (constant, per_token / _TOKENS, per_attended / _ATTENDED)
        self.num_observations += 1
        self.max_tokens = max(self.max_tokens, 2 * tokens)

    def predict(self, tokens: int, attended: int) -> float:
        """Seconds that a step of `tokens` tokens with `attended` attended positions will take."""
        constant, per_token, per_attended = self._coefficients
        return constant + per_token * tokens + per_attended * attended

    def largest_chunk(self, start: int, seconds: float) -> int:
        """How many tokens from position `start` on can be added to a step for `seconds` more."""
        if seconds <= 0:
            return 0
        _, per_token, per_attended = self._coefficients
        # n tokens attend to n * start + n * (n + 1) / 2 positions: solve the quadratic for n.
        linear = per_token + per_attended * (start + 0.5)
        half = per_attended / 2
        if half <= 0:
            return math.floor(seconds / linear) if linear > 0 else self.max_tokens
        return math.floor((math.sqrt(linear * linear + 4 * half * seconds) - linear) / (2 * half))


def attended_positions(start: int, count: int) -> int:
    """Positions that tokens `start..start+count-1` attend to, summed over them."""
    return count * start + count * (count + 1) // 2


class CopyRates:
    """Measured speed of recomputing tokens and of copying pages between device and host, for `auto`."""

    def __init__(self) -> None:
        self.seconds_per_token: float | None = None
        self.seconds_per_page: float | None = None

    def observe_compute(self, tokens: int, seconds: float) -> None:
        """A step of mostly prompt tokens took `seconds`."""
        self.seconds_per_token = _smoothed(self.seconds_per_token, seconds / tokens)

    def observe_copy(self, pages: int, seconds: float) -> None:
        """Copying `pages` pages one way took `seconds`."""
        self.seconds_per_page = _smoothed(self.seconds_per_page, seconds / pages)


def _smoothed(old: float | None, new: float) -> float:
    return new if old is None else old + 0.1 * (new - old)


@dataclass(slots=True)
class StepBudget:
    """What a step has left: tokens, and with a latency target (`model`) also seconds for prompt tokens.

    With a target every step still has `least` prompt tokens, so that prompts progress whatever decodes cost.
    `max_chunk` bounds what one request computes. With `whole_prompts` nothing is cut: a prompt that is larger
    than the budget then has the step's prompt tokens for itself.
    """

    tokens: int
    max_chunk: int | None = None
    whole_prompts: bool = False
    model: StepCostModel | None = None
    seconds: float = 0.0
    least: int = 0
    prompt_tokens: int = 0

    def chunk(self, start: int, wanted: int) -> int:
        """How many of `wanted` prompt tokens from position `start` on this step can compute."""
        if self.whole_prompts:
            fits = wanted <= self.tokens or not self.prompt_tokens
            return wanted if fits and self.tokens > 0 else 0
        count = min(wanted, self.tokens)
        if self.max_chunk is not None:
            count = min(count, self.max_chunk)
        if self.model is not None:
            affordable = min(
                self.model.largest_chunk(start, self.seconds), self.model.max_tokens - self.prompt_tokens
            )
            count = min(count, max(affordable, self.least - self.prompt_tokens))
        return max(count, 0)

    def take_prompt(self, start: int, count: int) -> None:
        """Spend on `count` prompt tokens from position `start` on."""
        self.tokens -= count
        self.prompt_tokens += count
        if self.model is not None:
            attended = attended_positions(start, count)
            self.seconds -= self.model.predict(count, attended) - self.model.predict(0, 0)
