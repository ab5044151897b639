"""How one request samples: every option, checked once."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from trunkline.runtime.errors import RequestError

from .constraint import Constraint

__all__ = ["InvalidSamplingParams", "SamplingParams"]

MAX_STOPS = 64
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_LOGPROBS = 20
MAX_CHOICES = 128
FORBIDDING_BIAS = -100.0
GREEDY_BELOW = 1e-6
INT64 = np.iinfo(np.int64)


class InvalidSamplingParams(RequestError):
    """A sampling option with a value that isn't allowed; `param` is the option's name."""


@dataclass(frozen=True)
class SamplingParams:
    """The sampling options of one request.

    The next token is drawn from the model's logits after these steps, in this order: logit_bias, the
    penalties, the ban of stop tokens below min_tokens and of what the constraint forbids, temperature, top_k,
    top_p, min_p. Tokens of equal logits rank by id.

    max_tokens: new tokens at most, 1 or more; None is the rest of the context.
    min_tokens: new tokens before anything may stop the request; stop tokens can't be sampled until then. Only a
        constraint ends it earlier, where nothing else than a stop token may follow.
    temperature: 0 to 2; below 1e-6 the likeliest token is taken (the lowest id of equals).
    top_k: only the k likeliest tokens; -1 and 0 mean off.
    top_p: only the likeliest tokens that together reach this probability, (0, 1]; 1 is off.
    min_p: only tokens at least this fraction as likely as the likeliest, 0 to 1; 0 is off.
    repetition_penalty: 0.01 to 2; divides positive and multiplies negative logits of tokens seen in prompt or
        output.
    frequency_penalty: -2 to 2; subtracted once for each time a token stands in the output (never the prompt).
    presence_penalty: -2 to 2; subtracted from tokens that stand in the output (never the prompt).
    logit_bias: token id -> -100 to 100, added to its logit; exactly -100 forbids the token. Up to 1024 ids.
    seed: any int64. The text depends on the seed and the request alone, never on what runs beside it;
        choice i of `n` draws from `derive_seed(seed, i)`. None: the engine draws a seed.
    stop: up to 64 strings of up to 1024 UTF-8 bytes; one string stands for itself.
    stop_token_ids: ids that end the request besides the model's own, up to 1024.
    ignore_eos: the model's own end-of-sequence ids don't end the request.
    logprobs: alternatives reported with each new token, 0 to 20 (0: the token alone); None is off. They are
        of the model's own distribution, before any of the options above.
    prompt_logprobs: the same for each prompt token.
    prompt_logprobs_start: the first prompt token scored; those before it may come from the cache.
    n: choices, 1 to 128.
    constraint: what the text must look like (see `Constraint`); not with ignore_eos.
    skip_special_tokens: leave special tokens out of the text.
    include_stop_str_in_output: keep the stop string at the end of the text.

    Raises InvalidSamplingParams, with one line that names the option, what is allowed and the value.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    stop: str | Collection[str] = ()
    stop_token_ids: Collection[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    n: int = 1
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        self._check_integer("max_tokens", 1, None, optional=True)
        self._check_integer("min_tokens", 0, None)
        self._check_integer("top_k", -1, None)
        self._check_integer("seed", INT64.min, INT64.max, optional=True)
        self._check_integer("logprobs", 0, MAX_LOGPROBS, optional=True)
        self._check_integer("prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
        self._check_integer("prompt_logprobs_start", 0, None)
        self._check_integer("n", 1, MAX_CHOICES)
        self._check_number("temperature", 0, 2)
        self._check_number("top_p", 0, 1, above_low=True)
        self._check_number("min_p", 0, 1)
        self._check_number("repetition_penalty", 0.01, 2)
        self._check_number("frequency_penalty", -2, 2)
        self._check_number("presence_penalty", -2, 2)
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, "True or False", getattr(self, name))
        self._set("stop", _checked_stops(self.stop))
        self._set("stop_token_ids", _checked_token_ids(self.stop_token_ids))
        self._set("logit_bias", _checked_biases(self.logit_bias))
        if self.constraint is not None and not isinstance(self.constraint, Constraint):
            raise _invalid("constraint", "a Constraint", self.constraint)
        if self.constraint is not None and self.ignore_eos:
            raise InvalidSamplingParams("constraint and ignore_eos exclude each other", "constraint")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidSamplingParams(
                f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}", "min_tokens"
            )

    @cached_property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken, so that no random number is needed."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @cached_property
    def moves_logits(self) -> bool:
        """Whether single logits are changed before a token is sampled, whatever the constraint says."""
        return bool(self.logit_bias or self.min_tokens or self._is_penalised)

    @property
    def _is_penalised(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def is_sequential(self) -> bool:
        """Whether a token can be sampled only when those before it are known on the host."""
        return self.constraint is not None or self._is_penalised

    @property
    def logits_from(self) -> int | None:
        """The first prompt position whose logits are wanted: they score the token behind it. None: no position's."""
        return None if self.prompt_logprobs is None else max(0, self.prompt_logprobs_start - 1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @cached_property
    def bias_arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """`logit_bias` as arrays of ids and of what is added to them: -inf for a forbidden one."""
        ids = np.fromiter(self.logit_bias.keys(), dtype=np.int64)
        biases = np.fromiter(self.logit_bias.values(), dtype=np.float32)
        return ids, np.where(biases == FORBIDDING_BIAS, np.float32(-np.inf), biases)

    def validate_for(self, vocab_size: int) -> None:
        """Raises InvalidSamplingParams if an id in stop_token_ids or logit_bias is none of the model's."""
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias)):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidSamplingParams(
                        f"{name}: token id {token_id} is outside of the vocabulary, [0, {vocab_size})", name
                    )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_integer(self, name: str, low: int, high: int | None, *, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        self._set(name, _integer(name, value, low, high))

    def _check_number(self, name: str, low: float, high: float, *, above_low: bool = False) -> None:
        self._set(name, _number(name, getattr(self, name), low, high, above_low=above_low))


def _integer(name: str, value: Any, low: int, high: int | None, at: str = "") -> int:
    allowed = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _invalid(name, allowed, value, at)
    number = int(value)
    if number < low or (high is not None and number > high):
        raise _invalid(name, allowed, number, at)
    return number


def _number(
    name: str, value: Any, low: float, high: float, *, above_low: bool = False, at: str = ""
) -> float:
    allowed = f"a number in {'(' if above_low else '['}{low}, {high}]"
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above_low and value == low):
        raise _invalid(name, allowed, value, at)
    return float(value)


def _checked_stops(stop: Any) -> tuple[str, ...]:
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, Collection) or isinstance(stop, (bytes, Mapping)):
        raise _invalid("stop", "a string or a list of strings", stop)
    if len(stop) > MAX_STOPS:
        raise InvalidSamplingParams(f"stop: {len(stop)} strings, at most {MAX_STOPS} are allowed", "stop")
    for index, text in enumerate(stop):
        if not isinstance(text, str) or not text:
            raise _invalid("stop", "a string that is not empty", text, f"[{index}]")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidSamplingParams(
                f"stop[{index}] has a lone surrogate at position {error.start}", "stop"
            ) from None
        if size > MAX_STOP_BYTES:
            raise InvalidSamplingParams(
                f"stop[{index}] has {size} bytes, at most {MAX_STOP_BYTES} are allowed", "stop"
            )
    return tuple(stop)


def _checked_token_ids(ids: Any) -> tuple[int, ...]:
    name = "stop_token_ids"
    if not isinstance(ids, Collection) or isinstance(ids, (str, bytes, Mapping)):
        raise _invalid(name, "a list of token ids", ids)
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidSamplingParams(f"{name}: {len(ids)} ids, at most {MAX_STOP_TOKEN_IDS} are allowed", name)
    return tuple(_integer(name, token_id, 0, None, f"[{index}]") for index, token_id in enumerate(ids))


def _checked_biases(biases: Any) -> dict[int, float]:
    name = "logit_bias"
    if not isinstance(biases, Mapping):
        raise _invalid(name, "a mapping of token ids to numbers", biases)
    if len(biases) > MAX_LOGIT_BIASES:
        raise InvalidSamplingParams(
            f"{name}: {len(biases)} ids, at most {MAX_LOGIT_BIASES} are allowed", name
        )
    return {
        _integer(name, token_id, 0, None, " key"): _number(name, bias, -100, 100, at=f"[{_shown(token_id)}]")
        for token_id, bias in biases.items()
    }


def _invalid(name: str, allowed: str, value: Any, at: str = "") -> InvalidSamplingParams:
    return InvalidSamplingParams(f"{name}{at} must be {allowed}, not {_shown(value)}", name)


def _shown(value: Any) -> str:
    """The value on one short line, whatever a client sent."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)
