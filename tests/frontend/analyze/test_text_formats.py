"""Inputs with text: which calls a row holds, and what their tokens are."""

import json
from pathlib import Path
from typing import Any

import pytest

from trunkline.frontend.analyze.lines import BadRecord
from trunkline.frontend.analyze.reading import read_trace
from trunkline.frontend.analyze.text_formats import calls_of

SYSTEM = {"role": "system", "content": "You help."}
ASK = {"role": "user", "content": "Hello?"}
REPLY = {"role": "assistant", "content": "Hi."}


def only_call(row: dict[str, Any]) -> Any:
    (call,) = calls_of(row, 1)
    return call


@pytest.mark.parametrize(
    "row",
    [
        {"model": "m", "messages": [SYSTEM, ASK], "response": "Hi."},
        {"request": {"model": "m", "messages": [SYSTEM, ASK]}, "response": {"choices": [{"message": REPLY}]}},
        {
            "custom_id": "7",
            "method": "POST",
            "body": {"model": "m", "messages": [SYSTEM, ASK]},
            "response": {"body": {"choices": [{"message": REPLY}]}},
        },
    ],
)
def test_shapes_of_openai_logs_give_the_same_call(row: dict[str, Any]) -> None:
    call = only_call(row)
    assert call.messages == [SYSTEM, ASK]
    assert call.answer == "Hi."
    assert call.labels["model"] == "m"


def test_usage_time_and_labels_are_found() -> None:
    call = only_call(
        {
            "request": {
                "model": "m",
                "prompt": "abc",
                "user": "ann",
                "cache_salt": "s",
                "metadata": {"call_site": "x"},
            },
            "response": {
                "created": 1_700_000_000_000,
                "usage": {"prompt_tokens_details": {"cached_tokens": 2}},
            },
        }
    )
    assert (call.prompt, call.reported_cached, call.time) == ("abc", 2, 1_700_000_000.0)
    assert call.labels == {"namespace": "s", "tenant": "ann", "model": "m", "session": "", "call_site": "x"}


def test_each_answer_of_a_recorded_conversation_is_a_call() -> None:
    row = {"id": "c", "messages": [SYSTEM, ASK, REPLY, ASK, REPLY]}
    calls = list(calls_of(row, 1))
    assert [call.id for call in calls] == ["c/0", "c/1"]
    assert [len(call.messages or ()) for call in calls] == [2, 4]
    assert {call.labels["session"] for call in calls} == {"c"}


def test_a_request_with_earlier_answers_is_one_call() -> None:
    assert len(list(calls_of({"model": "m", "messages": [ASK, REPLY, ASK]}, 1))) == 1


def test_sharegpt_roles_are_translated() -> None:
    row = {"id": "c", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    call = only_call(row)
    assert call.messages == [{"role": "user", "content": "a"}]
    assert call.answer == "b"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"model": "m", "messages": []}, "messages is not a list of messages"),
        ({"model": "m", "messages": [{"content": "x"}]}, "a message has no role"),
        ({"prompt": ""}, "prompt is neither text nor a list of token ids"),
        ({"prompt": [1, -2]}, "prompt is neither text nor a list of token ids"),
        ({"prompt": "x", "timestamp": "yesterday"}, "neither a number nor an ISO date"),
        ({"conversations": [{"from": "martian", "value": "x"}]}, "unknown role"),
    ],
)
def test_rows_that_cannot_be_used_say_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        list(calls_of(row, 1))


def test_conversations_become_tokens_of_the_embedded_model_and_answers_are_cached(tmp_path: Path) -> None:
    rows = [
        {"id": str(n), "messages": [SYSTEM, {"role": "user", "content": f"Number {n}?"}, REPLY, ASK, REPLY]}
        for n in (1, 2)
    ]
    path = tmp_path / "log"
    path.write_text("\n".join(map(json.dumps, rows)))
    trace = read_trace(path)
    assert trace.ids == ("1/0", "1/1", "2/0", "2/1")
    assert trace.outputs_cached
    assert trace.text is not None
    first = trace.text.of(0)
    assert trace.text.of(1)[: len(first)].tolist() == first.tolist()
    assert trace.text.decode(first.tolist(), skip_special=False).endswith("<|im_start|>assistant\nHi.")


def test_images_are_left_out_with_the_reason(tmp_path: Path) -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    path = tmp_path / "log"
    path.write_text(json.dumps([{"model": "m", "messages": [picture]}, {"model": "m", "messages": [ASK]}]))
    trace = read_trace(path)
    assert len(trace) == 1
    assert trace.skipped[0]["reason"] == "a message has a part that is no text"
