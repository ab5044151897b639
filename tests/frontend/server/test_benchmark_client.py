"""The benchmark client: fixed text, true figures, against a real server."""

import asyncio

import pytest

from benchmarks.client import Record, Target, percentile, run, summary, table
from benchmarks.workloads import WORKLOADS, Turn, Workload, build
from tests.frontend.server.serving import Server


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_workload_is_the_same_for_a_seed_and_shares_nothing_with_another(name: str) -> None:
    assert build(name, 1) == build(name, 1)
    one, other = (build(name, seed).clients[0][0].text for seed in (1, 2))
    assert one[:20] != other[:20]


def test_figures_are_those_of_the_records() -> None:
    records = [
        Record("", 0.0, [1.0, 1.5, 2.5], "abc", {"prompt_tokens": 10, "completion_tokens": 3}, end=2.5),
        Record("long", 1.0, [4.0], "x", {"prompt_tokens": 90, "completion_tokens": 1}, end=5.0),
        Record("", 0.0, error="RuntimeError: 503", end=0.1),
    ]
    figures = summary(records)
    assert (figures["requests"], figures["errors"], figures["first_error"]) == (3, 1, "RuntimeError: 503")
    assert (figures["wall_s"], figures["output_tok_s"], figures["total_tok_s"]) == (5.0, 0.8, 20.8)
    assert (figures["ttft_p50_s"], figures["itl_max_s"], figures["long_ttft_s"]) == (1.0, 1.0, 3.0)
    assert figures["cached_tokens"] is None
    assert percentile([], 50) is None
    assert table([figures | {"label": "a"}]).count("\n") == 2


def test_a_conversation_sends_its_answers_back(server: Server) -> None:
    workload = Workload(
        2, [[Turn(f"{user} first", 4), Turn("second", 4)] for user in ("one", "two")], "be brief"
    )
    figures = asyncio.run(run(Target(server.url, server.name, server.key), workload))
    assert (figures["requests"], figures["errors"], figures["output_tokens"]) == (4, 0, 16)
    assert figures["cached_tokens"] > 0


def test_what_a_server_refuses_is_an_error_of_the_run(server: Server) -> None:
    figures = asyncio.run(run(Target(server.url, "nobody", server.key), Workload(1, [[Turn("x", 4)]])))
    assert figures["errors"] == 1
    assert "404" in figures["first_error"]
