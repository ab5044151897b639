"""What becomes of an engine's outputs and errors, with an engine that can be told what to say."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.frontend.server.fake_engine import FakeEngine, output
from tests.frontend.server.serving import events
from tests.frontend.server.test_bodies import error_of
from tests.runtime.engines import embedded_tokenizer
from trunkline.errors import ConfigError
from trunkline.frontend.server.app import create_app
from trunkline.frontend.server.errors import overloaded, shown, shutting_down
from trunkline.frontend.server.explanations import Explanations, without_others
from trunkline.frontend.server.generation import Generation, GenerationOptions
from trunkline.frontend.server.limits import WaitingRoom
from trunkline.frontend.server.listening import bound_socket
from trunkline.frontend.server.logs import configure_logging
from trunkline.frontend.server.observe import bounded_id
from trunkline.frontend.server.settings import ServerSettings
from trunkline.radix import DEFAULT_NAMESPACE
from trunkline.runtime.errors import EngineDeadError, RequestError
from trunkline.runtime.sampling import SamplingParams

END = output("!", finish_reason="stop", last=True, num_output_tokens=2)


def client(engine: FakeEngine, **settings: Any) -> TestClient:
    app = create_app(engine, embedded_tokenizer(), ServerSettings(**settings))
    return TestClient(app, raise_server_exceptions=False)


def ask(http: TestClient, **fields: Any) -> Any:
    return http.post("/v1/completions", json={"model": "fake", "prompt": "x", "max_tokens": 4, **fields})


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (RequestError("no room", "prompt"), 400, None),
        (EngineDeadError("pid 7 at /secret died"), 500, "engine_dead"),
        (output(finish_reason="error", last=True, error="the logits are NaN"), 500, "engine_error"),
        (output(finish_reason="abort", last=True), 503, "shutting_down"),
        (ZeroDivisionError("/secret/file.py"), 500, "internal_error"),
    ],
)
def test_a_failure_has_a_status_before_the_first_token_and_an_event_after(
    failure: Any, status: int, code: str
) -> None:
    for body in ({}, {"stream": True}):
        answer = ask(client(FakeEngine([failure])), **body)
        assert error_of(answer, status)["code"] == code
        assert "secret" not in answer.text
    assert error_of(ask(client(FakeEngine([output("a"), failure]))), status)["code"] == code
    streamed = ask(client(FakeEngine([output("a"), failure])), stream=True)
    assert streamed.status_code == 200
    *_, last = events(streamed.text)
    assert json.loads(last)["error"]["code"] == code
    assert "secret" not in streamed.text


@pytest.mark.parametrize("failure", [output(finish_reason="error", last=True), RequestError("no")])
def test_a_failure_of_one_prompt_closes_the_streams_of_all(failure: Any) -> None:
    engine = FakeEngine([failure], [None])
    assert ask(client(engine), prompt=["a", "b"]).status_code >= 400
    assert [stream.closed for stream in engine.streams] == [True, True]


def test_a_request_reaches_the_engine_as_it_was_meant() -> None:
    engine = FakeEngine([output("a"), END])
    ask(client(engine), prompt=[5, 6], priority=3, cache_salt="s", trunkline={"cache": True}, top_k=4, seed=9)
    [given] = engine.submitted
    assert given["prompt"].tolist() == [5, 6]
    assert (given["priority"], given["namespace"], given["explain"]) == (3, ("salt", "s"), True)
    assert given["params"] == SamplingParams(max_tokens=4, top_k=4, seed=9)


def test_a_broken_invariant_is_told_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    answer = client(FakeEngine([])).post("/v1/cache/check")
    assert error_of(answer, 500)["message"] == "an invariant is broken; the log says which"
    assert "page 3" in caplog.text


def test_probes_tell_a_dead_engine_from_a_closed_door() -> None:
    engine = FakeEngine([])
    http = client(engine)
    assert (http.get("/health").status_code, http.get("/ready").status_code) == (200, 200)
    http.app.state.service.room.close(shutting_down())
    assert (http.get("/health").status_code, http.get("/ready").status_code) == (200, 503)
    assert error_of(ask(http), 503)["code"] == "shutting_down"
    engine.alive = False
    assert http.get("/health").status_code == 503


def test_a_page_of_an_allowed_origin_may_call_and_others_may_not() -> None:
    http = client(FakeEngine([]), cors_origins=("http://page.example",), api_keys=("k",))
    question = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    good = http.options("/v1/completions", headers={"Origin": "http://page.example", **question})
    assert good.headers["access-control-allow-origin"] == "http://page.example"
    bad = http.options("/v1/completions", headers={"Origin": "http://evil.example", **question})
    assert "access-control-allow-origin" not in bad.headers


def test_a_cut_ends_a_generation_that_waits() -> None:
    async def run() -> None:
        options = GenerationOptions(SamplingParams(), 0, DEFAULT_NAMESPACE, False)
        engine = FakeEngine([output("a"), None])
        async with Generation(engine, [[1]], options) as generation:
            assert (await anext(generation))[1].text == "a"
            waiting = asyncio.create_task(anext(generation))
            await asyncio.sleep(0)
            generation.cut(shutting_down())
            with pytest.raises(Exception, match="shutting down"):
                await waiting
        assert engine.streams[0].closed

    asyncio.run(run())


def test_outputs_of_several_prompts_are_numbered_by_choice() -> None:
    async def run() -> list[tuple[int, str]]:
        options = GenerationOptions(SamplingParams(n=2), 0, DEFAULT_NAMESPACE, False)
        ends = [output("a", 0, finish_reason="stop"), output("b", 1, finish_reason="stop", last=True)]
        async with Generation(FakeEngine(ends), [[1], [2]], options) as generation:
            return sorted([(choice, part.text) async for choice, part in generation])

    assert asyncio.run(run()) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]


def test_the_waiting_room_counts_only_who_waits() -> None:
    room = WaitingRoom(2)
    with room.enter() as first, room.enter():
        with pytest.raises(Exception, match="2 requests are waiting") as refused:
            room.enter()
        assert refused.value.headers == {"Retry-After": "1"}
        first.served(20.0)
        with room.enter():
            assert room.num_waiting == 2
            with pytest.raises(Exception, match="waiting") as refused:
                room.enter()
            assert refused.value.headers == {"Retry-After": "3"}
    assert room.num_waiting == 0


def test_explanations_are_bounded_and_shown_to_their_owner_only() -> None:
    kept = Explanations(2)
    for id, owner in (("a", None), ("b", "t"), ("c", "u")):
        kept.put(id, owner, {"id": id})
    assert kept.get("a", None) is None
    assert kept.get("b", "t") == {"id": "b"}
    assert kept.get("b", "u") is None
    assert kept.get("nobody", None) is None


def test_other_namespaces_look_like_nothing() -> None:
    parts = [
        {"start": 0, "end": 4, "reason": "cached"},
        {"start": 4, "end": 16, "reason": "never_seen"},
        {"start": 16, "end": 32, "reason": "other_namespace", "kind": "salt", "value": "secret"},
        {"start": 32, "end": 40, "reason": "never_seen"},
        {"start": 40, "end": 41, "reason": "last_token"},
    ]
    assert without_others({"num_tokens": 41, "parts": parts}) == {
        "num_tokens": 41,
        "parts": [
            {"start": 0, "end": 4, "reason": "cached"},
            {"start": 4, "end": 40, "reason": "never_seen"},
            {"start": 40, "end": 41, "reason": "last_token"},
        ],
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("a\nb", '"a\\nb"'),
        ("x" * 200, '"' + "x" * 100 + '"…'),
        ([1, 2], "a list of 2"),
        ({"a": 1}, "an object"),
        (10**400, "an integer of 1329 bits"),
        (object(), "a value of another type"),
    ],
)
def test_values_are_shown_short_and_as_json(value: Any, text: str) -> None:
    assert shown(value) == text


def test_ids_of_clients_are_cut_to_harmless_characters() -> None:
    assert bounded_id("a b\x1b[0m<c>") == "ab0mc"
    assert bounded_id("x" * 500) == "x" * 128
    assert bounded_id(None) != bounded_id("\u00ff")


def test_log_lines_are_one_line_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("trunkline")
    before = (logger.handlers, logger.propagate, logger.level)
    try:
        configure_logging("info")
        logger.warning("field %s", "a\r\nb\x1b[31m\u202e")
    finally:
        logger.handlers, logger.propagate, _ = before
        logger.setLevel(before[2])
    assert capsys.readouterr().err.rstrip("\n").endswith("field a\\u000d\\u000ab\\u001b[31m\\u202e")


@pytest.mark.parametrize(
    "settings",
    [
        {"port": -1},
        {"max_queue": 0},
        {"max_body_bytes": 10},
        {"body_timeout": 0},
        {"drain_timeout": float("inf")},
        {"slow_reader_timeout": -1},
        {"api_keys": ("",)},
        {"api_keys": ("two words",)},
        {"namespace_per_key": True},
        {"served_model_names": ("",)},
    ],
)
def test_settings_out_of_range_name_themselves(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ServerSettings(**settings)


def test_an_overload_says_when_to_come_back() -> None:
    assert overloaded("full", 7).headers == {"Retry-After": "7"}


def test_answers_are_not_held_back_for_more_to_send() -> None:
    with bound_socket("127.0.0.1", 0) as listener:
        assert (
            listener.proto == socket.IPPROTO_TCP
        )  # what asyncio looks at before it turns Nagle's algorithm off


@pytest.mark.parametrize(("host", "port"), [("nowhere.invalid", 0), ("203.0.113.7", 0)])
def test_an_address_that_is_not_ours_is_named(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match=host):
        bound_socket(host, port)
