"""What arrives at a simulated server: requests whose prompts are ranges of made-up token ids.

Equal content has equal ids and different content different ones, so the prefix cache sees exactly the
sharing that a trace tells, while a prompt of 100,000 tokens costs a few numbers until it arrives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trunkline.errors import ConfigError

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]

_MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request of a workload.

    Args:
        id: unique in its workload.
        arrival_time: seconds from the start; for one that follows another, the seconds after that one's end.
        range_starts: first token id of each range of the prompt, int64.
        range_lengths: tokens in each range, int64.
        max_new_tokens: tokens it generates, exactly.
        output_start: id of its first generated token; the others count on from it.
        after: id of the request that must be finished before this one arrives (the turn before it).
    """

    id: str
    arrival_time: float
    range_starts: Int64Array
    range_lengths: Int64Array
    max_new_tokens: int
    output_start: int
    after: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return int(self.range_lengths.sum())

    def prompt(self) -> Int32Array:
        """The prompt's token ids. O(tokens), built anew at each call."""
        ranges = zip(self.range_starts.tolist(), self.range_lengths.tolist(), strict=True)
        return np.concatenate([np.arange(start, start + length, dtype=np.int32) for start, length in ranges])


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival (followers anywhere), with what a reader of results should know.

    `block_size` is the granularity at which the source knows about sharing; 1 if exact, None if it knows
    nothing.
    """

    name: str
    requests: tuple[SimulatedRequest, ...]
    block_size: int | None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.requests)

    def head(self, count: int) -> "Workload":
        """The first `count` requests; those whose predecessor is cut off go as well."""
        kept: dict[str, SimulatedRequest] = {}
        for request in self.requests[:count]:
            if request.after is None or request.after in kept:
                kept[request.id] = request
        return replace(self, requests=tuple(kept.values()))

    def faster(self, factor: float) -> "Workload":
        """The same requests arriving `factor` times as fast; think times stay."""
        if not 0 < factor < float("inf"):
            raise ConfigError(f"the speed of a trace must be positive, got {factor}")
        return replace(
            self,
            requests=tuple(
                replace(request, arrival_time=request.arrival_time / factor)
                if request.after is None
                else request
                for request in self.requests
            ),
        )


class TokenIds:
    """Hands out ranges of token ids that nobody else has."""

    def __init__(self) -> None:
        self._next = 1

    def take(self, count: int) -> int:
        """The first of `count` new ids. Raises ConfigError when 2^31 ids are used up."""
        start = self._next
        self._next += count
        if self._next > _MAX_TOKEN_ID:
            raise ConfigError("the workload needs more than 2^31 different tokens; simulate a part of it")
        return start


def one_range(start: int, length: int) -> tuple[Int64Array, Int64Array]:
    """`range_starts` and `range_lengths` of a prompt that shares nothing."""
    return np.array([start], np.int64), np.array([length], np.int64)


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times of a Poisson process with `rate` requests a second. Seeded, so equal from run to run."""
    if not 0 < rate < float("inf"):
        raise ConfigError(f"the arrival rate must be positive, got {rate}")
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return [float(time) for time in np.cumsum(gaps)]


def from_lengths(
    name: str, lengths: Sequence[tuple[int, int]], arrivals: Sequence[float], notes: tuple[str, ...] = ()
) -> Workload:
    """Requests of (prompt, output) lengths that share no prefix with each other."""
    ids = TokenIds()
    requests = []
    for number, ((prompt, output), arrival) in enumerate(zip(lengths, arrivals, strict=True)):
        starts, counts = one_range(ids.take(prompt), prompt)
        requests.append(SimulatedRequest(str(number), arrival, starts, counts, output, ids.take(output)))
    return Workload(name, tuple(requests), None, notes)


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """A made-up workload: conversations over shared system prompts.

    Args:
        num_requests: requests over all turns.
        rate: conversations that start per second (Poisson).
        shared_tokens: length of each shared prefix.
        num_prefixes: how many different shared prefixes there are.
        shared_fraction: share of conversations that start with one of them; the others start with own text.
        turns: turns of a conversation; a turn's prompt is the whole conversation before it and a new message.
        think_seconds: mean of the (exponential) pause before the next turn.
        prompt_tokens: mean length of a message (geometric).
        output_tokens: mean length of an answer (geometric).
    """

    num_requests: int = 1000
    rate: float = 2.0
    shared_tokens: int = 1024
    num_prefixes: int = 4
    shared_fraction: float = 0.8
    turns: int = 3
    think_seconds: float = 10.0
    prompt_tokens: int = 256
    output_tokens: int = 192
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "num_prefixes", "turns", "prompt_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"generated workload: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("shared_tokens", "think_seconds", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"generated workload: {name} must not be negative, got {getattr(self, name)}"
                )
        if not 0 <= self.shared_fraction <= 1:
            raise ConfigError(
                f"generated workload: shared_fraction must be in [0, 1], got {self.shared_fraction}"
            )


def generate(config: GeneratorConfig) -> Workload:
    """The workload that `config` describes; equal configurations give equal workloads."""
    rng = np.random.default_rng(config.seed)
    ids = TokenIds()
    prefixes = [ids.take(max(1, config.shared_tokens)) for _ in range(config.num_prefixes)]
    num_conversations = -(-config.num_requests // config.turns)
    arrivals = poisson_arrivals(num_conversations, config.rate, config.seed + 1)
    requests: list[SimulatedRequest] = []
    for number, arrival in enumerate(arrivals):
        ranges: list[tuple[int, int]] = []
        if config.shared_tokens:
            shared = rng.random() < config.shared_fraction
            start = (
                prefixes[int(rng.integers(config.num_prefixes))] if shared else ids.take(config.shared_tokens)
            )
            ranges.append((start, config.shared_tokens))
        turns = min(config.turns, config.num_requests - len(requests))
        requests.extend(_conversation(config, rng, ids, number, arrival, ranges, turns))
    notes = (
        f"generated, seed {config.seed}: {num_conversations} conversations of up to {config.turns} turns, "
        f"{config.rate:g} start a second, {config.shared_fraction:.0%} of them with one of "
        f"{config.num_prefixes} shared prefixes of {config.shared_tokens} tokens",
    )
    return Workload("generated", tuple(requests), 1, notes)


def _conversation(
    config: GeneratorConfig,
    rng: np.random.Generator,
    ids: TokenIds,
    number: int,
    arrival: float,
    ranges: list[tuple[int, int]],
    turns: int,
) -> Iterator[SimulatedRequest]:
    """The turns of one conversation; each continues the ranges of the one before it with its answer."""
    before: str | None = None
    for turn in range(turns):
        message = int(rng.geometric(1 / config.prompt_tokens))
        output = int(rng.geometric(1 / config.output_tokens))
        ranges = [*ranges, (ids.take(message), message)]
        starts, lengths = np.array(ranges, np.int64).T
        output_start = ids.take(output)
        time = arrival if before is None else float(rng.exponential(config.think_seconds))
        name = f"{number}.{turn}"
        yield SimulatedRequest(name, time, starts, lengths, output, output_start, before)
        before = name
        ranges.append((output_start, output))
