"""Workloads: prompts as ranges of token ids, arrivals, the generator."""

import numpy as np
import pytest

from trunkline.errors import ConfigError
from trunkline.scheduler.workload import (
    GeneratorConfig,
    SimulatedRequest,
    TokenIds,
    Workload,
    from_lengths,
    generate,
    poisson_arrivals,
)


def request(
    name: str, ranges: list[tuple[int, int]], after: str | None = None, arrival: float = 0.0
) -> SimulatedRequest:
    starts, lengths = np.array(ranges, np.int64).T
    return SimulatedRequest(name, arrival, starts, lengths, max_new_tokens=3, output_start=100, after=after)


def test_prompt_is_its_ranges_one_after_another() -> None:
    prompt = request("a", [(7, 3), (50, 1), (8, 2)]).prompt()
    assert prompt.tolist() == [7, 8, 9, 50, 8, 9]
    assert prompt.dtype == np.int32


def outputs(request: SimulatedRequest) -> list[int]:
    return list(range(request.output_start, request.output_start + request.max_new_tokens))


def test_head_drops_followers_of_what_is_cut_off() -> None:
    workload = Workload(
        "w", (request("a", [(1, 1)]), request("b", [(2, 1)], "a"), request("c", [(3, 1)], "z")), 1
    )
    assert [kept.id for kept in workload.head(3).requests] == ["a", "b"]
    assert [kept.id for kept in workload.head(1).requests] == ["a"]


def test_faster_shrinks_arrivals_and_keeps_think_times() -> None:
    workload = Workload("w", (request("a", [(1, 1)], arrival=8.0), request("b", [(2, 1)], "a", 6.0)), 1)
    assert [kept.arrival_time for kept in workload.faster(4).requests] == [2.0, 6.0]
    with pytest.raises(ConfigError, match="speed of a trace must be positive, got 0"):
        workload.faster(0)


def test_token_ids_end_at_int32() -> None:
    ids = TokenIds()
    assert (ids.take(10), ids.take(1)) == (1, 11)
    with pytest.raises(ConfigError, match=r"more than 2\^31 different tokens"):
        ids.take(2**31 - 12)


def test_poisson_arrivals_are_seeded_and_have_the_rate() -> None:
    times = poisson_arrivals(4000, rate=5.0, seed=3)
    assert times == poisson_arrivals(4000, rate=5.0, seed=3)
    assert times != poisson_arrivals(4000, rate=5.0, seed=4)
    assert times == sorted(times)
    assert times[-1] / 4000 == pytest.approx(0.2, rel=0.05)
    with pytest.raises(ConfigError, match="rate must be positive, got 0"):
        poisson_arrivals(1, 0, 0)


def test_requests_of_lengths_share_no_token() -> None:
    workload = from_lengths("lengths", [(3, 2), (4, 1)], [0.0, 1.5])
    tokens = [token for r in workload.requests for token in [*r.prompt().tolist(), *outputs(r)]]
    assert len(tokens) == len(set(tokens)) == 10
    assert [r.arrival_time for r in workload.requests] == [0.0, 1.5]


def test_generated_turns_continue_their_conversation() -> None:
    workload = generate(
        GeneratorConfig(num_requests=9, turns=3, shared_tokens=20, prompt_tokens=8, output_tokens=5)
    )
    assert len(workload) == 9
    for before, after in zip(workload.requests, workload.requests[1:], strict=False):
        if after.after is None:
            continue
        assert after.after == before.id
        known = [*before.prompt().tolist(), *outputs(before)]
        assert after.prompt().tolist()[: len(known)] == known
        assert after.num_prompt_tokens > len(known)


def test_generator_shares_prefixes_as_often_as_asked() -> None:
    def heads(fraction: float) -> list[int]:
        config = GeneratorConfig(num_requests=400, turns=1, shared_fraction=fraction, num_prefixes=3, seed=5)
        return [int(request.prompt()[0]) for request in generate(config).requests]

    assert len(set(heads(1.0))) == 3
    assert len(set(heads(0.0))) == 400
    some = heads(0.5)
    own = [head for head in some if some.count(head) == 1]
    assert 170 <= len(own) <= 230


def test_generator_is_deterministic() -> None:
    def flat(seed: int) -> list[object]:
        return [
            (r.id, r.arrival_time, r.prompt().tolist(), r.max_new_tokens)
            for r in generate(config(seed)).requests
        ]

    def config(seed: int) -> GeneratorConfig:
        return GeneratorConfig(num_requests=30, prompt_tokens=10, shared_tokens=10, seed=seed)

    assert flat(1) == flat(1)
    assert flat(1) != flat(2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_requests", 0), ("turns", 0), ("shared_tokens", -1), ("shared_fraction", 1.5), ("rate", 0)],
)
def test_generator_refuses_what_makes_no_sense(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=str(value)):
        generate(GeneratorConfig(**{field: value}))
