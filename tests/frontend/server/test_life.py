"""Life and death: clients that leave, queues that fill, signals, and an engine that dies."""

import asyncio
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from tests.frontend.server.conftest import QUEUE_LIMIT
from tests.frontend.server.serving import DEADLINE, Server, events, read_all, request_bytes
from trunkline.frontend.server.process import _Process
from trunkline.frontend.server.service import Service
from trunkline.frontend.server.settings import ServerSettings
from trunkline.runtime.engine.stats import EngineInfo

ENDLESS = {"max_tokens": 1900, "temperature": 0, "ignore_eos": True}
RUNNING = "trunkline_requests_running"
GENERATED = "trunkline_generated_tokens_total"
GROWTH_BYTES = 24 * 2**20
GONE = 'trunkline_http_requests_total{outcome="disconnected",route="/v1/completions"}'


def send(server: Server, **fields: Any) -> socket.socket:
    """A connection on which a completion has just been asked for."""
    body = json.dumps({"model": server.name, "prompt": "go", **fields}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)
    connection.sendall(request_bytes(server, "/v1/completions", body))
    return connection


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_ends_its_request_within_a_second(server: Server, streamed: bool) -> None:
    before = server.metrics().get(GONE, 0.0)
    connection = send(server, stream=streamed, **ENDLESS)
    server.wait_for(lambda metrics: metrics[RUNNING] == 1)
    connection.close()
    assert server.wait_idle() < 1
    computed = server.metrics()[GENERATED]
    server.wait_for(lambda metrics: metrics.get(GONE, 0.0) == before + 1)
    assert server.metrics()[GENERATED] == computed
    server.wait_log("disconnected")


def test_a_client_that_leaves_while_it_waits_or_is_prefilled_leaves_nothing(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        blocker = pool.submit(server.complete, "block", **{**ENDLESS, "max_tokens": 200})
        connections = [
            send(server, prompt=[9 + index] * 1500, **ENDLESS | {"max_tokens": 500}) for index in range(8)
        ]
        for connection in connections:
            connection.close()
        blocker.result()
    server.wait_idle(2)


def test_a_client_that_leaves_after_the_last_token_changes_nothing(server: Server) -> None:
    with send(server, max_tokens=2, stream=True) as connection:
        seen = b""
        while b"[DONE]" not in seen:
            seen += connection.recv(4096)
    server.wait_idle(1)


def test_what_a_client_left_behind_is_cached_for_its_next_turn(server: Server) -> None:
    history = (
        "A conversation so far, which is some pages long and will be sent again with the next turn. " * 3
    )
    body = {"model": server.name, "prompt": history, "stream": True, **ENDLESS}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        texts = [json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"] for _ in range(5)]
    server.wait_idle(1)
    answer = server.complete(history + "".join(texts) + " and a new message")
    first_turn = len(server.post("/tokenize", {"prompt": history}).json()["tokens"])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= first_turn - 1


def test_a_slow_reader_holds_up_nobody(server: Server) -> None:
    slow = socket.create_connection(("127.0.0.1", server.port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    body = json.dumps(
        {"model": server.name, "prompt": "go", "stream": True, "logprobs": 20, "n": 4, **ENDLESS}
    ).encode()
    slow.sendall(request_bytes(server, "/v1/completions", body))
    server.wait_for(lambda metrics: metrics[RUNNING] >= 4)
    started = time.monotonic()
    server.complete("quick", max_tokens=20, ignore_eos=True)
    assert time.monotonic() - started < 5
    assert slow.recv(1)
    slow.close()
    server.wait_idle(5)


def test_a_thousand_requests_at_once_are_answered_or_sent_away(server: Server) -> None:
    body = {"model": server.name, "prompt": "Many of us", "max_tokens": 2, "temperature": 0}
    headers = {"Authorization": f"Bearer {server.key}"}
    limits = httpx.Limits(max_connections=1000)

    async def flood() -> list[httpx.Response]:
        async with httpx.AsyncClient(
            base_url=server.url, headers=headers, limits=limits, timeout=120
        ) as client:
            return await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(1000)))

    expected = server.complete("Many of us", max_tokens=2)["choices"]
    answers = asyncio.run(flood())
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 503}
    assert statuses[200] >= QUEUE_LIMIT
    for answer in answers:
        if answer.status_code == 200:
            assert answer.json()["choices"] == expected
        else:
            assert answer.json()["error"]["code"] == "overloaded"
            assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_storm_of_random_clients_leaves_pool_and_memory_as_they_were(server: Server) -> None:
    rng = random.Random(7)

    def client(number: int) -> None:
        kind = rng.choice(["whole", "stream", "leave", "leave", "bad", "trickle"])
        fields = {"prompt": "x" * rng.randrange(1, 400), "max_tokens": rng.randrange(1, 30), "seed": number}
        if kind == "bad":
            server.client.post("/v1/completions", content=b"{" * rng.randrange(1, 50))
        elif kind == "trickle":
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(request_bytes(server, "/v1/completions", b"{" * 40)[:-20])
        elif kind == "leave":
            with send(
                server, stream=rng.random() < 0.5, n=rng.randrange(1, 4), **{**fields, "max_tokens": 300}
            ):
                pass
        else:
            with send(server, stream=kind == "stream", **fields) as connection:
                assert b" 200 " in read_all(connection)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(client, range(800)))  # buffers and the tree reach their usual size
        server.wait_idle()
        before = server.memory()
        list(pool.map(client, range(800, 1600)))
    server.wait_idle()
    assert server.memory() - before < GROWTH_BYTES


@pytest.fixture
def own_server(tiny_folder: Path) -> Iterator[Server]:
    server = Server(tiny_folder, "--kv-cache-tokens", "4096", "--drain-timeout", "2").started()
    yield server
    server.stop()


def read_stream(server: Server, lines: list[str], begun: threading.Event, **fields: Any) -> None:
    body = {
        "model": server.name,
        "prompt": "go",
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        text = ""
        for chunk in response.iter_text():
            begun.set()
            text += chunk
        lines.extend(events(text))


def test_sigterm_lets_streams_end_and_cuts_off_what_takes_too_long(own_server: Server) -> None:
    long: list[str] = []
    short: list[str] = []
    threads = []
    for lines, max_tokens in ((long, 2000), (short, 8)):
        begun = threading.Event()
        reader = threading.Thread(
            target=read_stream, args=(own_server, lines, begun), kwargs={"max_tokens": max_tokens}
        )
        reader.start()
        threads.append(reader)
        assert begun.wait(DEADLINE)
    own_server.signal(signal.SIGTERM)
    for thread in threads:
        thread.join(DEADLINE)
    assert own_server.wait_exit() == 0
    assert short[-1] == "[DONE]"
    assert json.loads(long[-1])["error"]["code"] == "shutting_down"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", own_server.port))


def test_a_dead_engine_is_told_to_every_client_and_ends_the_server(own_server: Server) -> None:
    lines: list[str] = []
    begun = threading.Event()
    thread = threading.Thread(
        target=read_stream, args=(own_server, lines, begun), kwargs={"max_tokens": 2000}
    )
    thread.start()
    with ThreadPoolExecutor(1) as pool:
        assert begun.wait(DEADLINE)
        body = {"model": own_server.name, "prompt": "x", **ENDLESS}
        whole = pool.submit(own_server.post, "/v1/completions", body)
        own_server.wait_for(lambda metrics: metrics[RUNNING] == 2)
        os.kill(own_server.engine_pid(), signal.SIGKILL)
        thread.join(DEADLINE)
        response = whole.result()
    assert json.loads(lines[-1])["error"]["code"] == "engine_dead"
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_dead"
    assert own_server.wait_exit() == 1
    assert "exit code -9" in own_server.wait_log("the engine's process ended")


IMPOSSIBLE = [
    (["--model", "/no/such/folder"], "/no/such/folder"),
    (["--port", "99999"], "99999"),
    (["--host", "nowhere.invalid"], "nowhere.invalid"),
    (["--max-model-len", "4096", "--kv-cache-tokens", "1024"], "4096"),
    (["--namespace-per-key"], "namespace_per_key"),
    (["--max-queue", "0"], "max_queue"),
    (["--log-level", "loud"], "loud"),
    (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
]


def test_the_address_takes_connections_from_the_moment_it_is_told() -> None:
    info = EngineInfo(
        "a", max_model_len=1, vocab_size=1, page_size=1, num_pages=1, dtype="float32", backend="cpu"
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        _Process(ServerSettings(), listener)._announce(cast(Service, SimpleNamespace(names=["a"], info=info)))
        socket.create_connection(listener.getsockname(), timeout=DEADLINE).close()


def test_settings_that_can_not_be_end_with_one_line_and_code_2() -> None:
    servers = [(Server(None, *options), words) for options, words in IMPOSSIBLE]
    for server, words in servers:
        assert server.wait_exit(120) == 2
        assert len(server.log) == 1, server.log
        assert words in server.log[0]


def test_a_port_in_use_is_said_before_the_model_is_loaded(server: Server) -> None:
    second = Server(None, "--port", str(server.port))
    assert second.wait_exit(60) == 2
    assert "in use" in second.log[0]
    assert len(second.log) == 1
