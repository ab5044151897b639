"""Conversations of several turns: what was generated is found again, token by token; and the log that tells of it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.server.serving import Server
from trunkline.frontend.analyze.progress import Silent
from trunkline.frontend.analyze.reading import InputOptions, read_trace
from trunkline.frontend.analyze.validate import validate

QUESTIONS = ("Name a river.", "Where does it begin?", "Which cities lie on it?", "And how long is it?")


def converse(server: Server, temperature: float, stream: bool, **fields: Any) -> list[tuple[int, int, int]]:
    """(prompt, cached, generated) tokens of each turn, through the real client."""
    client = server.openai()
    messages: list[dict[str, str]] = []
    turns = []
    for number, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        options = {"temperature": temperature, "seed": number, "max_tokens": 20, **fields}
        if stream:
            chunks = list(
                client.chat.completions.create(
                    model=server.name,
                    messages=messages,  # type: ignore[arg-type]
                    stream=True,
                    stream_options={"include_usage": True},
                    **options,
                )
            )
            usage = chunks[-1].usage
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            answer = client.chat.completions.create(model=server.name, messages=messages, **options)  # type: ignore[arg-type]
            usage, text = answer.usage, answer.choices[0].message.content or ""
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens or 0
        turns.append((usage.prompt_tokens, cached, usage.completion_tokens))
        messages.append({"role": "assistant", "content": text})
    return turns


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_turn_reuses_all_of_the_turns_before_it(
    server: Server, temperature: float, stream: bool
) -> None:
    """The model is random: sampled, it spells its words as no tokenizer would, and is found again all the same."""
    turns = converse(server, temperature, stream, extra_body={"cache_salt": f"{temperature}{stream}"})
    for (prompt, _, generated), (_, cached, _) in pairwise(turns):
        assert cached == prompt + generated - 1  # the last token of an answer is never computed


def test_sixteen_users_at_once_each_reuse_all_of_their_turns(server: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        salts = [{"cache_salt": f"user {number}"} for number in range(16)]
        users = list(pool.map(lambda salt: converse(server, 1.0, True, extra_body=salt), salts))
    for turns in users:
        assert len(turns) == 4
        for (prompt, _, generated), (_, cached, _) in pairwise(turns):
            assert cached == prompt + generated - 1
    server.wait_idle()


def test_a_conversation_is_not_remembered_under_another_salt(server: Server) -> None:
    mine = converse(server, 1.0, False, extra_body={"cache_salt": "mine"})
    theirs = converse(server, 1.0, False, extra_body={"cache_salt": "theirs"})
    assert mine[0][1] == theirs[0][1] == 0
    assert mine == theirs


def test_a_stop_string_cuts_the_answer_and_the_next_turn_is_still_right(server: Server) -> None:
    whole = server.chat("Tell me more", max_tokens=20, ignore_eos=True)["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    cut = server.chat("Tell me more", max_tokens=20, ignore_eos=True, stop=[stop])["choices"][0]["message"][
        "content"
    ]
    assert cut == whole[: whole.index(stop)]
    messages = [
        {"role": "user", "content": "Tell me more"},
        {"role": "assistant", "content": cut},
        {"role": "user", "content": "Go on"},
    ]
    warm = server.chat(messages, max_tokens=8)
    cold = server.chat(messages, max_tokens=8, cache_salt="cold")
    assert warm["choices"][0]["message"] == cold["choices"][0]["message"]


@pytest.fixture(scope="module")
def logging_server(
    tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Path]]:
    log = tmp_path_factory.mktemp("log") / "requests.jsonl"
    server = Server(tiny_folder, "--kv-cache-tokens", "512", "--request-log", str(log)).started()
    yield server, log
    assert server.stop() == 0


def test_the_request_log_tells_every_hit_without_the_text(
    logging_server: tuple[Server, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    server, log = logging_server
    converse(server, 1.0, False, user="ada")
    server.complete(["The first of two", "The second of two"], n=2, temperature=1.0, max_tokens=4)
    with server.client.stream(
        "POST",
        "/v1/completions",
        json={"model": server.name, "prompt": "gone", "max_tokens": 400, "stream": True},
    ) as response:
        next(response.iter_lines())
    server.wait_idle()
    server.complete("Longer than what is left of the small pool " * 30, max_tokens=2)

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    header, requests = lines[0], lines[1:]
    assert header["kv_tokens"] == 512
    assert [line.get("session", "") for line in requests] == ["ada"] * 4 + [""] * 6
    assert [line["finish"] for line in requests[-2:]] == ["abort", "length"]
    assert "river" not in log.read_text()
    assert all(len(line["pages"]) == 16 * ((line["prompt"] + line["output"] - 1) // 16) for line in requests)

    found = validate(read_trace(str(log), InputOptions(), Silent()))
    assert found.reported.tolist() == [line["cached"] for line in requests]
    assert found.num_agreeing == len(found.ids) == 10  # to the page: that is what hashes tell


def test_a_log_with_tokens_predicts_every_hit_to_the_token(tiny_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    server = Server(
        tiny_folder,
        *("--kv-cache-tokens", "4096", "--request-log", str(log), "--request-log-tokens"),
    ).started()
    for temperature in (0.0, 1.0):
        converse(server, temperature, stream=True)
    server.complete("A prompt that comes twice")
    server.complete("A prompt that comes twice")
    assert server.stop() == 0
    found = validate(read_trace(str(log), InputOptions(), Silent()))
    assert found.tolerance == 0
    assert found.predicted.tolist() == found.reported.tolist()
    assert found.reported.sum() > 400


def test_a_request_log_that_cannot_be_written_ends_the_start_in_one_line(
    tiny_folder: Path, tmp_path: Path
) -> None:
    server = Server(
        tiny_folder, "--kv-cache-tokens", "512", "--request-log", str(tmp_path / "no" / "log.jsonl")
    )
    assert server.wait_exit(120) == 2
    assert [line for line in server.log if "request_log" in line and "No such file" in line]
    assert not [line for line in server.log if line.startswith("Traceback")]
