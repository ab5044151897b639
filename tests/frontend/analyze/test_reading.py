"""Readers: what each format becomes, and what is said about records that can't be used."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trunkline.frontend.analyze.errors import InputError
from trunkline.frontend.analyze.reading import InputOptions, read_trace
from trunkline.frontend.analyze.trace import Trace


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def mooncake(timestamp: float, length: int, hash_ids: list[int], **more: object) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": length, "output_length": 5, "hash_ids": hash_ids, **more}


def paths(trace: Trace) -> list[list[int]]:
    return [trace.path(request).tolist() for request in range(len(trace))]


def test_mooncake_rows_become_blocks_lengths_and_seconds(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t", mooncake(1000, 600, [7, 9]), mooncake(4500, 1024, [7, 8])))
    assert (trace.format, trace.block_size) == ("Mooncake", 512)
    assert paths(trace) == [[0, 1], [0, 2]]
    assert trace.num_tokens.tolist() == [600, 1024]
    assert trace.time.tolist() == [0.0, 3.5]
    assert not trace.skipped
    assert not trace.notes


def test_bailian_turns_of_a_chat_are_one_session(tmp_path: Path) -> None:
    rows = [
        {
            "chat_id": 1,
            "parent_chat_id": -1,
            "timestamp": 5.0,
            "input_length": 20,
            "output_length": 3,
            "hash_ids": [4, 5],
        },
        {
            "chat_id": 2,
            "parent_chat_id": 1,
            "timestamp": 9.5,
            "input_length": 40,
            "output_length": 3,
            "hash_ids": [4, 6, 7],
        },
        {
            "chat_id": 3,
            "parent_chat_id": -1,
            "timestamp": 9.9,
            "input_length": 16,
            "output_length": 3,
            "hash_ids": [8],
        },
    ]
    trace = read_trace(write(tmp_path / "t", *({**row, "type": "text", "turn": 1} for row in rows)))
    assert (trace.format, trace.block_size) == ("Bailian", 16)
    assert trace.session.codes.tolist() == [0, 0, 1]
    assert trace.time.tolist() == [0.0, 4.5, pytest.approx(4.9)]


def test_agent_sessions_keep_their_block_numbers_to_themselves_and_flatten_sub_agents(tmp_path: Path) -> None:
    def call(t: float, blocks: list[int]) -> dict[str, Any]:
        return {"t": t, "type": "n", "in": 4 * len(blocks) + 1, "out": 2, "hash_ids": blocks, "model": "m"}

    inner = {"t": 2.0, "type": "subagent", "subagent_type": "search", "requests": [call(2.5, [1, 5])]}
    sessions = [
        {
            "id": "a",
            "block_size": 4,
            "hash_id_scope": "local",
            "requests": [call(0, [1, 2]), inner, call(9, [1, 2, 3])],
        },
        {"id": "b", "block_size": 4, "hash_id_scope": "local", "requests": [call(0, [1, 2])]},
    ]
    trace = read_trace(write(tmp_path / "t", *sessions))
    assert trace.ids == ("a/0", "a/1/0", "a/2", "b/0")
    assert paths(trace) == [[0, 1], [0, 2], [0, 1, 3], [4, 5]]
    assert [trace.call_site.of(request) for request in range(4)] == ["main", "search", "main", "main"]
    assert not trace.has_one_clock


def test_dynamo_requests_keep_what_the_server_reported(tmp_path: Path) -> None:
    def event(received: float, hashes: list[int], cached: int) -> dict[str, Any]:
        replay = {"trace_block_size": 16, "input_length": 16 * len(hashes), "input_sequence_hashes": hashes}
        request = {
            "request_id": f"r{received}",
            "output_tokens": 3,
            "cached_tokens": cached,
            "ttft_ms": 250.0,
        }
        request |= {"request_received_ms": received, "total_time_ms": 900.0, "model": "q", "replay": replay}
        return {
            "event": {"event_type": "request_end", "request": request, "agent_context": {"session_id": "s"}}
        }

    large = 2**64 - 5
    tool = {"event": {"event_type": "tool_end", "tool": {}}}
    trace = read_trace(write(tmp_path / "t", event(1000, [large], 0), tool, event(3000, [large, 7], 16)))
    assert paths(trace) == [[0], [0, 1]]
    assert trace.reported_cached.tolist() == [0, 16]
    assert trace.first_token_time.tolist() == [0.25, 2.25]
    assert trace.skipped == (
        {"reason": "an event 'tool_end', which is no request", "count": 1, "first_line": 2},
    )


def test_stdin_is_read_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = write(tmp_path / "t", mooncake(0, 512, [1]), mooncake(1, 512, [1])).read_bytes()

    class Stdin:
        buffer = io.BytesIO(gzip.compress(rows))

    monkeypatch.setattr("sys.stdin", Stdin)
    trace = read_trace("-")
    assert trace.name == "stdin"
    assert paths(trace) == [[0], [0]]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"timestamp": 1, "input_le', "is not JSON"),
        ("[1, 2]", "is not a JSON object"),
        (mooncake(1, 512, [1, 2, 3]), "does not fit the prompt's length"),
        (mooncake(1, 0, []), "input_length is below 1"),
        (mooncake(-4, 512, [1]), "timestamp is not a time"),
        ({**mooncake(1, 512, [1]), "hash_ids": ["x"]}, "hash_ids are not 64-bit integers"),
        ({**mooncake(1, 512, [1]), "hash_ids": [1.5]}, "hash_ids are not 64-bit integers"),
        ({**mooncake(1, 512, [1]), "input_length": True}, "input_length is not a whole number"),
        ({"prompt": "of another kind"}, "input_length is not a whole number"),
    ],
)
def test_a_bad_line_is_left_out_and_counted_with_its_number(tmp_path: Path, bad: object, reason: str) -> None:
    trace = read_trace(write(tmp_path / "t", mooncake(0, 512, [1]), bad, mooncake(2, 512, [1])))
    assert len(trace) == 2
    (skip,) = trace.skipped
    assert reason in skip["reason"]
    assert (skip["count"], skip["first_line"]) == (1, 2)


def test_a_gzip_file_that_breaks_off_says_so(tmp_path: Path) -> None:
    rows = [mooncake(second, 512 * 40, list(range(second, second + 40))) for second in range(300)]
    whole = gzip.compress(write(tmp_path / "t", *rows).read_bytes())
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    trace = read_trace(tmp_path / "cut")
    assert 0 < len(trace) < 300
    assert any("breaks off" in skip["reason"] for skip in trace.skipped)


def test_requests_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    rows = [mooncake(2000, 512, [2]), mooncake(1000, 512, [1]), mooncake(3000, 512, [1])]
    trace = read_trace(write(tmp_path / "t", *rows))
    assert trace.ids == ("2", "1", "3")
    assert trace.notes == ("1 requests are earlier than the one before them; sorted by time",)


def test_ids_used_again_are_told_apart_and_counted(tmp_path: Path) -> None:
    rows = [mooncake(second, 512, [1], request_id="x") for second in range(3)]
    trace = read_trace(write(tmp_path / "t", *rows))
    assert trace.ids == ("x", "x#2", "x#3")
    assert trace.notes == ("2 request ids are used again; the later ones carry #2, #3, ...",)


def test_times_in_a_wrong_unit_are_doubted_and_can_be_corrected(tmp_path: Path) -> None:
    path = write(tmp_path / "t", *(mooncake(second, 100_000, list(range(196))) for second in range(200)))
    assert any("wrong unit" in note for note in read_trace(path).notes)
    corrected = read_trace(path, InputOptions(time_unit="s"))
    assert corrected.time[-1] == 199
    assert not corrected.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n", "line 1 is the header of a CSV of lengths"),
        ("a,b,c\n1,2,3\n", "line 1 is a CSV, not JSON"),
        ("", "has no lines"),
        ("\n\n", "has no lines"),
        ("hello world\n", "line 1: is not JSON; nothing else is there"),
        ('{"colour": 1}\n', "line 1: no known kind of record; its keys are colour"),
        ("[1, 2", "neither JSON lines nor a whole JSON array"),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": 3}\n',
            "hash_ids is not a list",
        ),
    ],
)
def test_an_input_with_nothing_to_analyse_is_refused_with_the_reason(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "t"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be read: No such file"):
        read_trace(tmp_path / "nowhere")


def test_one_block_of_another_size_is_refused_alone(tmp_path: Path) -> None:
    rows = [mooncake(0, 32, [1, 2], block_size=16), mooncake(1, 32, [1], block_size=32)]
    trace = read_trace(write(tmp_path / "t", *rows))
    assert trace.block_size == 16
    assert trace.skipped[0]["reason"] == "block_size differs from the first request's 16"


def test_float_times_and_lengths_that_are_whole_numbers_are_taken(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t", mooncake(0.5, 512.0, [1]), mooncake(1.25, 512, [1])))
    assert np.allclose(trace.time, [0, 0.00075])
