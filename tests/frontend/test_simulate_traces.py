"""Readers of traces: what each format becomes, and what is said about lines that are wrong."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from trunkline.errors import ConfigError
from trunkline.frontend.simulate.setup import Setup
from trunkline.frontend.simulate.traces import TraceError, read_trace
from trunkline.scheduler.config import SchedulerConfig
from trunkline.scheduler.hardware import find_device, find_model
from trunkline.scheduler.roofline import Roofline
from trunkline.scheduler.workload import Workload

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def mooncake(timestamp: float, length: int, output: int, hash_ids: list[int]) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": hash_ids}


def prompts(workload: Workload) -> list[list[int]]:
    return [request.prompt().tolist() for request in workload.requests]


def test_mooncake_blocks_become_equal_tokens_where_ids_are_equal(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(1500, 600, 3, [7, 9]), mooncake(4500, 1024, 1, [7, 8]))
    workload = read_trace(path)
    first, second = prompts(workload)
    assert (len(first), len(second)) == (600, 1024)
    assert first[:512] == second[:512]
    assert not set(first[512:]) & set(second[512:])
    assert [request.arrival_time for request in workload.requests] == [0.0, 3.0]
    assert [request.max_new_tokens for request in workload.requests] == [3, 1]
    assert workload.block_size == 512


def test_mooncake_blocks_in_any_order_keep_their_content(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(0, 1536, 1, [5, 6, 7]), mooncake(0, 1100, 1, [6, 5, 7]))
    first, second = prompts(read_trace(path))
    assert second[:512] == first[512:1024]
    assert second[512:1024] == first[:512]
    assert second[1024:] == first[1024:1100]


def test_outputs_have_tokens_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(0, 600, 3, [7, 9]), mooncake(1, 10, 2, [3]))
    workload = read_trace(path)
    outputs = [r.output_start + index for r in workload.requests for index in range(r.max_new_tokens)]
    assert len(set(outputs)) == 5
    assert not set(outputs) & {token for prompt in prompts(workload) for token in prompt}


def test_gzipped_trace_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain = write(tmp_path / "t.jsonl", mooncake(0, 600, 3, [7, 9]))
    packed = tmp_path / "no_telling_name"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert prompts(read_trace(packed)) == prompts(read_trace(plain))


def test_unsorted_arrivals_are_put_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(3000, 10, 1, [1]), mooncake(1000, 20, 1, [2]))
    assert [request.num_prompt_tokens for request in read_trace(path).requests] == [20, 10]


def test_rate_replaces_recorded_arrivals_in_file_order(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(3000, 10, 1, [1]), mooncake(1000, 20, 1, [2]))
    requests = read_trace(path, rate=2.0, seed=1).requests
    assert [request.num_prompt_tokens for request in requests] == [10, 20]
    assert 0 < requests[0].arrival_time < requests[1].arrival_time
    assert requests[1].arrival_time == read_trace(path, rate=2.0, seed=1).requests[1].arrival_time


def session(name: str, *requests: dict[str, object]) -> dict[str, object]:
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests)}


def turn(t: float, length: int, ids: list[int], **more: object) -> dict[str, object]:
    return {"t": t, "type": "n", "in": length, "out": 5, "hash_ids": ids, "api_time": 2.0} | more


def test_session_turns_follow_each_other_after_their_think_time(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t",
        session("a", turn(0, 70, [1]), turn(9, 130, [1, 2], think_time=4.0), turn(20, 64, [3])),
        session("b", turn(0, 64, [1])),
    )
    workload = read_trace(path)
    assert [(r.id, r.after, r.arrival_time) for r in workload.requests] == [
        ("a/0", None, 0.0),
        ("a/1", "a/0", 4.0),
        ("a/2", "a/1", 9.0),
        ("b/0", None, 0.0),
    ]
    first, second, _, other = prompts(workload)
    assert first[:64] == second[:64]
    assert not set(first[64:]) & set(second[64:])
    assert not set(first) & set(other)


def test_sub_agent_runs_beside_its_parent(tmp_path: Path) -> None:
    nested = {"t": 3.0, "type": "subagent", "requests": [turn(0, 64, [1]), turn(5, 64, [2], think_time=1.5)]}
    path = write(tmp_path / "t", session("a", turn(0, 64, [1]), nested, turn(50, 64, [3], think_time=40.0)))
    workload = read_trace(path)
    assert [(r.id, r.after, r.arrival_time) for r in workload.requests] == [
        ("a/0", None, 0.0),
        ("a/1/0", "a/0", 1.0),
        ("a/1/1", "a/1/0", 1.5),
        ("a/2", "a/0", 40.0),
    ]
    assert prompts(workload)[0] == prompts(workload)[1]


def test_session_requests_without_a_prompt_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t", session("a", turn(0, 64, [1]), turn(1, 0, []), turn(2, 64, [2], out=0)))
    workload = read_trace(path)
    assert [(request.id, request.max_new_tokens) for request in workload.requests] == [("a/0", 5), ("a/2", 1)]
    assert "1 requests without a prompt left out" in workload.notes


def test_session_rate_spreads_session_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "t", session("a", turn(0, 64, [1])), session("b", turn(0, 64, [1])))
    first, second = read_trace(path, rate=0.1, seed=2).requests
    assert 0 < first.arrival_time < second.arrival_time


@pytest.mark.parametrize(
    ("header", "rows", "arrivals"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9305900,396,109"],
            [0.0, 4.25],
        ),
        ("arrival_s,input_tokens,output_tokens", ["0.5,374,44", "0.75,396,109"], [0.0, 0.25]),
    ],
)
def test_length_traces_become_requests(
    tmp_path: Path, header: str, rows: list[str], arrivals: list[float]
) -> None:
    workload = read_trace(write(tmp_path / "t", header, *rows))
    assert [request.arrival_time for request in workload.requests] == pytest.approx(arrivals)
    assert [request.num_prompt_tokens for request in workload.requests] == [374, 396]
    assert [request.max_new_tokens for request in workload.requests] == [44, 109]
    assert workload.block_size is None


def test_byte_order_mark_and_missing_last_newline_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbfarrival_s,input_tokens,output_tokens\r\n0.5,374,44")
    assert read_trace(path).requests[0].num_prompt_tokens == 374


def test_lengths_without_times_need_a_rate(tmp_path: Path) -> None:
    lines = ["num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", "3772,54,3826,69.8"]
    path = write(tmp_path / "t", *lines)
    with pytest.raises(TraceError, match=r"no arrival times; .* \(--rate\)"):
        read_trace(path)
    assert read_trace(path, rate=1.0).requests[0].max_new_tokens == 54


def test_unbounded_cache_finds_what_the_trace_says_is_shared() -> None:
    workload = read_trace(DATA / "mooncake_conversation.jsonl.gz").head(400)
    workload = replace(
        workload, requests=tuple(replace(request, max_new_tokens=1) for request in workload.requests)
    )
    roofline = Roofline(find_model("SmolLM2-135M"), find_device("8xH200"), 256)
    report = Setup(roofline, SchedulerConfig(max_num_batched_tokens=2**20), kv_tokens=2**24).simulate(
        workload
    )
    seen: set[int] = set()
    expected = 0
    for request in workload.requests:
        blocks = request.prompt()[::512].tolist()
        hits = next((index for index, block in enumerate(blocks) if block not in seen), len(blocks))
        expected += min(512 * hits, request.num_prompt_tokens - 1)
        seen.update(blocks)
    assert report.cached_prompt_tokens == expected > 0
    assert report.num_preemptions == 0


GOOD = mooncake(0, 600, 3, [1, 2])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no lines"),
        (["hello"], "line 1: neither JSON lines nor a CSV header that is known: 'hello'"),
        ([{"prompt": "x"}], "line 1: unknown kind of JSON lines; its keys are prompt"),
        ([GOOD, "{broken"], "line 2: is not JSON"),
        ([GOOD, "[1]"], "line 2: is not a JSON object but list"),
        (
            [GOOD, "", GOOD | {"input_length": 0}],
            "line 3: input_length must be a number of at least 1, got 0",
        ),
        ([GOOD | {"output_length": None}], "line 1: output_length must be a number of at least 1, got None"),
        ([GOOD | {"output_length": 1.5}], "line 1: output_length must be a whole number, got 1.5"),
        ([GOOD | {"timestamp": "NaN"}], "line 1: timestamp must be a number of at least 0, got 'NaN'"),
        ([GOOD | {"hash_ids": [1, "x"]}], "line 1: hash_ids must be a list of integers"),
        ([GOOD | {"hash_ids": [1]}], None),
        ([GOOD | {"hash_ids": []}], "line 1: 0 blocks of 512 tokens do not fit a prompt of 600"),
        ([GOOD | {"hash_ids": [1, 2, 3]}], "line 1: 3 blocks of 512 tokens do not fit a prompt of 600"),
        (["arrival_s,input_tokens,output_tokens"], "has a header but no rows"),
        (["arrival_s,input_tokens,output_tokens", "1,2"], "line 2: has 2 cells where the header has 3"),
        (
            ["arrival_s,input_tokens,output_tokens", "1,x,2"],
            "line 2: input_tokens must be a number of at least 1",
        ),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "noon,1,2"],
            "line 2: TIMESTAMP is not a date and time: 'noon'",
        ),
        ([{"id": "s", "block_size": 64, "requests": [3]}], "line 1: requests of s must be a list of objects"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    tmp_path: Path, lines: list[object], message: str | None
) -> None:
    path = write(tmp_path / "bad.jsonl", *lines)
    if message is None:
        assert read_trace(path).requests[0].num_prompt_tokens == 600
        return
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))


def test_files_that_cannot_be_read_are_trace_errors(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "absent")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-12])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "cut.gz")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "binary")


def test_too_many_different_tokens_are_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t",
        session("a", {"t": 0, "in": 2**31, "out": 1, "hash_ids": [1, 2]}) | {"block_size": 2**30},
    )
    with pytest.raises(ConfigError, match=r"2\^31"):
        read_trace(path)
