"""Profiles of steps: honest sums, and nothing left behind."""

import itertools
import re

import pytest

from benchmarks.profile import __main__ as command
from benchmarks.profile.__main__ import NOT_THE_MODEL, ROWS, Profile, Profiler, Sizes, table
from benchmarks.profile.flame import WIDTH, flame_graph
from benchmarks.profile.spans import Spans
from tests.runtime.engines import tiny_model
from trunkline.runtime.engine import Engine, EngineConfig
from trunkline.scheduler import Scheduler, SchedulerConfig


class Outer:
    def call(self, inner: "Inner") -> int:
        return inner.call() + inner.call()


class Inner:
    def call(self) -> int:
        return 1

    @classmethod
    def build(cls) -> "Inner":
        return cls()


def test_time_belongs_to_the_innermost_span() -> None:
    spans = Spans(clock=itertools.count().__next__)  # each look at the clock takes a second
    calls = Outer.call, Inner.__dict__["build"]
    spans.wrap(Outer, "call", "outer")
    spans.wrap(Inner, "call", lambda inner: type(inner).__name__)
    spans.wrap(Inner, "build", "build")
    assert Outer().call(Inner.build()) == 2
    spans.restore()
    assert dict(spans.seconds) == {("build",): 1, ("outer",): 5, ("outer", "Inner"): 2}
    assert spans.own() == {("build",): 1, ("outer",): 3, ("outer", "Inner"): 2}
    assert calls == (Outer.call, Inner.__dict__["build"])


def test_a_flame_graphs_boxes_are_as_wide_as_their_time() -> None:
    seconds = {("step",): 10.0, ("step", "a"): 2.0, ("step", "b"): 5.0, ("step", "b", "<c>"): 4.0}
    drawn = flame_graph(seconds, 2, "a title")
    boxes = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    shares = [(float(x) / WIDTH, float(width) / WIDTH) for x, width in boxes]
    assert shares == [(0, 1), (0, 0.5), (0.5, 0.2), (0, 0.4)]
    assert "step 5e+03 ms, 100.0%" in drawn
    assert "&lt;c&gt;" in drawn


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(kv_cache_tokens=4096, scheduler=SchedulerConfig(max_num_batched_tokens=32))
    return Engine(config, loaded=tiny_model())


def test_a_profile_accounts_for_every_part_of_a_step(engine: Engine) -> None:
    before = Scheduler.schedule
    profiler = Profiler(engine, Sizes(streams=3, context=40, chunk=32, steps=2))
    profiles = {"decode": profiler.decode(), "prefill": profiler.prefill(), "both": profiler.mixed()}
    for profile in profiles.values():
        rows = profile.rows()
        assert all(rows[row] > 0 for row in ROWS)
        whole = profile.spans.seconds[("step",)] / profile.steps * 1e3
        assert sum(rows.values()) == pytest.approx(whole)
    assert Scheduler.schedule is before
    assert not engine.has_work
    engine.check()
    text = table(profiles)
    assert all(f"| {row} |" in text for row in (*NOT_THE_MODEL, "all", "all but the model"))


def test_steps_are_of_the_kind_that_is_meant(engine: Engine) -> None:
    profiler = Profiler(engine, Sizes(streams=3, context=40, chunk=32, steps=2))
    before = engine.stats()
    profiler.prefill()
    after = engine.stats()
    assert after.num_computed_tokens - before.num_computed_tokens == 32 * 6
    assert after.num_steps - before.num_steps == 6


def test_the_command_measures_32_steps_of_each_kind(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = []

    def measure(profiler: Profiler) -> Profile:
        measured.append(profiler._sizes.steps)
        spans = Spans()
        spans.seconds["schedule",] = 1.0
        return Profile(spans, 1, 1.0, 1.0)

    monkeypatch.setattr(command, "Engine", lambda config: engine)
    monkeypatch.setattr("sys.argv", ["profile"])
    for kind in ("decode", "prefill", "mixed"):
        monkeypatch.setattr(Profiler, kind, measure)
    command.main()
    assert measured == [32, 32, 32]
    assert "| decode 16 x 1,000 | prefill 512 | both |" in capsys.readouterr().out
