"""Curves: exact for LRU at every size, the real cache for the other policies, a bound nobody beats."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.frontend.analyze.traces import block_trace, random_paths
from tests.oracle.cache_curves import best_hits, lru_hits
from trunkline.frontend.analyze.analysis import AnalysisOptions, analyse, knee
from trunkline.frontend.analyze.chains import build_chains
from trunkline.frontend.analyze.errors import AnalyzeError
from trunkline.frontend.analyze.optimum import optimum_hits
from trunkline.frontend.analyze.policies import PolicyRuns, Replayable
from trunkline.frontend.analyze.reading import read_trace
from trunkline.frontend.analyze.replay import replay
from trunkline.frontend.analyze.touches import lru_curve, touch
from trunkline.radix.eviction import POLICIES

DATA = Path(__file__).resolve().parents[2] / "data"
ARXIV = DATA / "mooncake_arxiv_first1000.jsonl.gz"


@pytest.mark.parametrize("seed", range(12))
def test_lru_curve_equals_a_plain_lru_cache_at_every_size(seed: int) -> None:
    paths = random_paths(seed)
    rng = np.random.default_rng(seed)
    lookups = [int(rng.integers(0, len(path) + 1)) for path in paths] if seed % 2 else [len(p) for p in paths]
    trace = block_trace(paths, lookups=lookups)
    touches = touch(trace)
    curve = lru_curve(trace, touches)
    for capacity in range(trace.num_distinct_blocks + 2):
        plain = lru_hits(paths, lookups, capacity)
        assert touches.looked_up(trace).hit_blocks(trace, capacity).tolist() == plain
        assert curve.at(capacity)[0] == sum(plain)


def test_a_last_block_that_is_partly_full_counts_its_own_tokens() -> None:
    trace = block_trace([[1, 2], [1, 2], [1]], block_size=4, num_tokens=[7, 7, 4])
    curve = lru_curve(trace, touch(trace))
    assert [curve.at(size) for size in range(3)] == [(0, 0), (2, 8), (3, 11)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_compressed_cache_finds_block_for_block_what_the_serving_cache_finds(policy: str, seed: int) -> None:
    paths = random_paths(100 + seed, num_requests=60, reuse=0.8)
    rng = np.random.default_rng(seed)
    lookups = [int(rng.integers(0, len(path) + 1)) for path in paths] if seed % 3 == 0 else None
    priorities = rng.integers(0, 3, len(paths)).tolist() if policy == "priority" else None
    trace = block_trace(paths, block_size=1 + 511 * (seed % 2), lookups=lookups, priorities=priorities)
    run = Replayable.of(trace, build_chains(trace))
    for capacity in (1, 4, 20, 60):
        assert run.run((policy, capacity)).tolist() == replay(trace, policy, capacity).hit_blocks.tolist()


def test_namespaces_share_nothing_in_either_cache() -> None:
    paths = [path for seed in (1, 2) for path in random_paths(seed, 40)]
    namespaces = [("a", "b", "")[number % 3] for number in range(len(paths))]
    trace = block_trace(paths, namespaces=namespaces)
    run = Replayable.of(trace, build_chains(trace))
    for capacity in (5, 40, 1000):
        assert run.run(("lfu", capacity)).tolist() == replay(trace, "lfu", capacity).hit_blocks.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_optimum_is_what_trying_everything_finds(seed: int) -> None:
    paths = [path[:4] for path in random_paths(seed, num_requests=9, reuse=0.8)]
    trace = block_trace(paths)
    for capacity, hits in zip((1, 2, 4), optimum_hits(trace, touch(trace), [1, 2, 4]), strict=True):
        assert hits.sum() == best_hits(paths, capacity)


@pytest.mark.parametrize("seed", range(5))
def test_no_policy_beats_the_optimum_and_large_caches_reach_it(seed: int) -> None:
    trace = block_trace(random_paths(seed, num_requests=120))
    analysis = analyse(trace, AnalysisOptions(with_advice=False))
    best = analysis.curves["optimum"]
    for points in analysis.curves.values():
        assert all(p.hit_blocks <= b.hit_blocks for p, b in zip(points, best, strict=True))
    assert analysis.curves["lru"][-1].hit_blocks == best[-1].hit_blocks == analysis.infinite[0]


def test_published_check_figures_of_the_arxiv_trace() -> None:
    trace = read_trace(ARXIV)
    curve = lru_curve(trace, touch(trace))
    assert (len(trace), trace.num_lookups, trace.num_distinct_blocks) == (1000, 19_686, 12_207)
    assert (int(curve.blocks[-1]), int(curve.tokens[-1])) == (7_479, 3_826_202)
    assert trace.total_tokens == 9_792_030
    shares = [round(curve.at(size)[0] / trace.num_lookups, 4) for size in (1_000, 5_000, 10_000, 30_000)]
    assert shares == [0.2827, 0.3193, 0.3786, 0.3799]


def test_other_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = block_trace(random_paths(3))
    run = Replayable.of(trace, build_chains(trace))
    jobs = [(policy, size) for policy in ("lfu", "fifo") for size in (4, 16)]
    monkeypatch.setattr("trunkline.frontend.analyze.policies._WORTH_A_PROCESS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    with PolicyRuns(run, jobs) as runs:
        assert len(runs._workers) == 2
        shared = runs.results()
    assert [hits.tolist() for hits in shared] == [run.run(job).tolist() for job in jobs]


def test_what_a_killed_process_had_to_do_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = block_trace(random_paths(3))
    run = Replayable.of(trace, build_chains(trace))
    monkeypatch.setattr("trunkline.frontend.analyze.policies._WORTH_A_PROCESS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr("sys.executable", "/bin/false")
    with PolicyRuns(run, [("lfu", 4), ("fifo", 4)]) as runs:
        found = runs.results()
    assert [hits.tolist() for hits in found] == [run.run(job).tolist() for job in (("lfu", 4), ("fifo", 4))]


def test_names_without_chaining_are_told_apart_by_their_paths() -> None:
    trace = block_trace([[1, 2, 3], [2, 3], [1, 2, 4], [2, 3, 3]])
    assert trace.num_distinct_blocks == 7
    assert trace.seen_blocks().tolist() == [0, 0, 2, 2]


def test_knee_lies_where_the_curve_bends() -> None:
    trace = block_trace([[1, 2, 3]] * 50 + [list(range(10, 60)), [1, 2, 3], list(range(10, 60))])
    assert knee(lru_curve(trace, touch(trace))) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "mru"}, "policy 'mru' is not one of lru"),
        ({"size_tokens": 0}, "a cache of 0 tokens holds nothing"),
        ({"num_sizes": 1}, "must be 2..200, got 1"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(AnalyzeError, match=message):
        AnalysisOptions(**settings)


def test_analysis_of_a_gzipped_trace_is_that_of_the_plain_one(tmp_path: Path) -> None:
    plain = tmp_path / "trace"
    plain.write_bytes(b"".join(gzip.decompress(ARXIV.read_bytes()).splitlines(keepends=True)[:80]))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    options = AnalysisOptions(policies=())
    documents = [analyse(read_trace(path), options).to_dict() for path in (plain, packed)]
    assert documents[0].pop("input")["format"] == documents[1].pop("input")["format"] == "Mooncake"
    assert documents[0] == documents[1]
