"""The request log: what is written reads back, says nothing about the text, and predicts what was cached."""

import json
from pathlib import Path

import numpy as np
import pytest

from trunkline.errors import TrunklineError
from trunkline.frontend.analyze.errors import AnalyzeError, ServerError
from trunkline.frontend.analyze.live import Server, live_summary, validate_live
from trunkline.frontend.analyze.reading import read_trace
from trunkline.frontend.analyze.request_log import LoggedRequest, RequestLog
from trunkline.frontend.analyze.validate import validate
from trunkline.radix.config import RadixConfig
from trunkline.radix.pages import PagePool
from trunkline.radix.prefix_cache import PrefixCache


def logged(number: int, prompt: list[int], cached: int = 0, **more: object) -> LoggedRequest:
    values = {"t": 1000.0 + number, "first": 1000.25 + number, "end": 1000.5 + number, "output": (1, 2, 3)}
    return LoggedRequest(
        **{"id": f"r{number}", "prompt": np.array(prompt, np.int32), "cached": cached} | values | more
    )


def write_log(path: Path, requests: list[LoggedRequest], **settings: object) -> Path:
    defaults = {"page_size": 4, "kv_tokens": 400, "eviction_policy": "lru", "model": "m"}
    with RequestLog(path, **(defaults | settings)) as log:
        for request in requests:
            log.write(request)
    return path


def conversation(seed: int = 0, count: int = 40) -> list[LoggedRequest]:
    """Turns of a few users as a server with a small pool would log them."""
    rng = np.random.default_rng(seed)
    cache = PrefixCache(PagePool(40, 4), RadixConfig(page_size=4))
    histories: list[list[int]] = [list(range(7)) for _ in range(5)]
    requests = []
    for number in range(count):
        history = histories[int(rng.integers(5))]
        history += rng.integers(0, 50, int(rng.integers(1, 9))).tolist()
        if len(history) > 60:
            del history[7:]
            history += rng.integers(50, 90, 5).tolist()
        prompt = np.array(history, np.int32)
        output = rng.integers(0, 50, 5).tolist()
        lease = cache.acquire(match := cache.match(prompt))
        stored = np.concatenate([prompt, np.array(output[:-1], np.int32)])
        assert cache.reserve(lease, len(prompt))
        cache.copied(lease)
        cache.commit(lease, prompt)
        assert cache.reserve(lease, len(stored))
        cache.commit(lease, stored)
        cache.release(lease)
        requests.append(logged(number, history.copy(), match.num_tokens, output=output))
        history += output
    return requests


def test_a_log_reads_back_as_pages_of_prompt_and_answer(tmp_path: Path) -> None:
    requests = [logged(0, [1, 2, 3, 4, 5, 6]), logged(1, [1, 2, 3, 4, 5, 6, 1, 2, 9])]
    trace = read_trace(write_log(tmp_path / "log", requests))
    assert trace.format == "trunkline request log"
    assert [trace.path(r).tolist() for r in range(2)] == [[0, 1], [0, 1]]
    assert trace.num_lookup_blocks.tolist() == [1, 2]
    assert trace.num_tokens.tolist() == [6, 9]
    assert trace.time.tolist() == [0.0, 1.0]
    assert trace.server == {"page_size": 4, "kv_tokens": 400, "eviction_policy": "lru", "model": "m"}


def test_hashes_differ_with_the_salt_and_tokens_are_there_only_on_request(tmp_path: Path) -> None:
    request = logged(0, [1, 2, 3, 4, 5, 6], namespace=("salt", "secret"))
    lines = [
        json.loads(
            write_log(tmp_path / str(number), [request], with_tokens=number == 2).read_text().splitlines()[1]
        )
        for number in range(3)
    ]
    assert lines[0]["pages"] != lines[1]["pages"]
    assert "tokens" not in lines[0]
    assert lines[2]["tokens"] == [1, 2, 3, 4, 5, 6, 1, 2]
    assert "secret" not in json.dumps(lines)
    same = [write_log(tmp_path / name, [request], salt=b"x").read_text() for name in "ab"]
    assert same[0] == same[1]


def test_a_server_that_was_started_again_has_an_empty_cache(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", [logged(0, [1, 2, 3, 4, 5])], with_tokens=True)
    write_log(path, [logged(1, [1, 2, 3, 4, 5])], with_tokens=True)
    trace = read_trace(path)
    assert trace.seen_lookups().tolist() == [0, 0]
    assert trace.notes == ("the server was started again (run 2): its cache was empty then",)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_with_tokens_predicts_every_cached_token(tmp_path: Path, seed: int) -> None:
    path = write_log(tmp_path / "log", conversation(seed), with_tokens=True, kv_tokens=160)
    found = validate(read_trace(path))
    assert found.reported.sum() > 0
    assert list(found.differences()) == []
    assert found.num_agreeing == 40


def test_a_log_of_hashes_predicts_to_the_page_in_a_large_pool(tmp_path: Path) -> None:
    requests = [
        logged(0, list(range(10))),
        logged(1, [*range(10), 5, 5], cached=10),
        logged(2, [0, 1, 9], cached=2),
    ]
    found = validate(read_trace(write_log(tmp_path / "log", requests)))
    assert found.predicted.tolist() == [0, 8, 0]
    assert found.num_agreeing == 3
    assert found.tolerance == 3


def test_a_wrong_report_is_shown(tmp_path: Path) -> None:
    requests = [logged(0, list(range(10))), logged(1, list(range(10)), cached=0)]
    found = validate(read_trace(write_log(tmp_path / "log", requests, with_tokens=True)))
    assert list(found.differences()) == [("r1", 10, 9, 0)]


def test_requests_that_overlap_share_the_prompt_but_not_the_unfinished_answer(tmp_path: Path) -> None:
    first = logged(0, [1, 2, 3, 4, 5], end=1010.0, output=(6, 7, 8))
    during = logged(1, [1, 2, 3, 4, 5, 6, 7, 9], cached=5)
    after = logged(20, [1, 2, 3, 4, 5, 6, 7, 10], cached=7)
    found = validate(read_trace(write_log(tmp_path / "log", [first, during, after], with_tokens=True)))
    assert found.predicted.tolist() == [0, 5, 7]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pages": "xyz"}, "pages are not 16 hexadecimal digits"),
        ({"pages": "00" * 8}, "pages are not 16 hexadecimal digits"),
        ({"prompt": 0}, "prompt is below 1"),
        ({"t": None}, "t is not a number"),
        ({"tokens": [1]}, "tokens are not the 8 tokens of prompt and answer"),
    ],
)
def test_bad_lines_are_counted(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = write_log(tmp_path / "log", [logged(0, [1, 2, 3, 4, 5, 6])] * 2)
    header, good, line = path.read_text().splitlines()
    path.write_text("\n".join([header, good, json.dumps(json.loads(line) | change)]))
    trace = read_trace(path)
    assert len(trace) == 1
    assert reason in trace.skipped[0]["reason"]
    assert trace.skipped[0]["first_line"] == 3


class FakeServer(Server):
    """Answers as a server whose cache is a `PrefixCache`."""

    def __init__(self) -> None:
        super().__init__("http://fake")
        object.__setattr__(self, "cache", PrefixCache(PagePool(500, 4), RadixConfig(page_size=4)))
        object.__setattr__(self, "salts", set())

    def post(self, path: str, body: object) -> object:
        assert path == "/v1/completions"
        self.salts.add(body["cache_salt"])
        prompt = np.array(body["prompt"], np.int32)
        match = self.cache.match(prompt)
        lease = self.cache.acquire(match)
        self.cache.reserve(lease, len(prompt))
        self.cache.commit(lease, prompt)
        self.cache.release(lease)
        return {"usage": {"prompt_tokens_details": {"cached_tokens": match.num_tokens}}}

    def get_json(self, path: str) -> object:
        if path == "/v1/models":
            return {"data": [{"id": "m"}]}
        return {"stats": {}, "tree": self.cache.tree.to_dict()}

    def get(self, path: str) -> bytes:
        return b'# HELP x\ntrunkline_steps_total 5.0\ntrunkline_x_bucket{le="1"} 2\nother 7\n'


def test_prompts_sent_to_a_server_come_back_as_predicted(tmp_path: Path) -> None:
    trace = read_trace(write_log(tmp_path / "log", conversation(), with_tokens=True))
    server = FakeServer()
    found = validate_live(server, trace)
    assert found.num_agreeing == len(trace)
    assert found.reported.sum() > 0
    assert len(server.salts) == 1


def test_hashes_cannot_be_sent_to_a_server(tmp_path: Path) -> None:
    trace = read_trace(write_log(tmp_path / "log", conversation()))
    with pytest.raises(AnalyzeError, match="has hashes and no text"):
        validate_live(FakeServer(), trace)


def test_a_server_is_summed_up_by_its_metrics_and_most_reused_nodes(tmp_path: Path) -> None:
    server = FakeServer()
    validate_live(server, read_trace(write_log(tmp_path / "log", conversation(), with_tokens=True)))
    summary = live_summary(server)
    assert summary["metrics"] == {"trunkline_steps_total": 5.0}
    assert summary["top_nodes"][0]["hits"] > 0


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:9/metrics: no answer") as error:
        live_summary(Server("http://127.0.0.1:9"))
    assert isinstance(error.value, TrunklineError)


def test_part_of_a_page_is_shared_only_when_it_was_computed_in_an_earlier_step(tmp_path: Path) -> None:
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9, 9], [1, 2, 3, 4, 5, 6, 9, 7]]
    together = [
        logged(n, prompt, t=1000 + n / 100, first=1001 + (n > 0), end=1009)
        for n, prompt in enumerate(prompts)
    ]
    found = validate(read_trace(write_log(tmp_path / "together", together, with_tokens=True)))
    assert found.predicted.tolist() == [0, 6, 6]
    apart = [
        logged(n, prompt, t=1000 + n / 100, first=1001 + n, end=1009) for n, prompt in enumerate(prompts)
    ]
    found = validate(read_trace(write_log(tmp_path / "apart", apart, with_tokens=True)))
    assert found.predicted.tolist() == [0, 6, 7]
