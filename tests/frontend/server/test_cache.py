"""The prefix cache as clients see it: what was reused, why not, whose it is, and emptying it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.test_bodies import error_of

PROMPT = (
    "Something long enough to fill a page or two of sixteen tokens each, and then a little more than that."
)


def cached(answer: dict) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_a_repeated_prompt_is_cached_but_for_its_last_token(server: Server) -> None:
    first = server.complete(PROMPT, cache_salt="repeat")
    again = server.complete(PROMPT, cache_salt="repeat")
    assert cached(first) == 0
    assert cached(again) == again["usage"]["prompt_tokens"] - 1
    assert again["choices"] == first["choices"]


def test_nothing_crosses_between_salts(server: Server) -> None:
    server.complete(PROMPT, cache_salt="one")
    assert cached(server.complete(PROMPT, cache_salt="two")) == 0
    explained = server.complete(PROMPT, cache_salt="three", trunkline={"cache": True})["trunkline"]["cache"]
    assert {part["reason"] for part in explained["parts"]} == {"never_seen", "last_token"}


def test_the_partition_adds_up_and_is_kept(server: Server) -> None:
    server.complete(PROMPT, cache_salt="explain")
    answer = server.complete(PROMPT + " And more.", cache_salt="explain", trunkline={"cache": True})
    parts = answer["trunkline"]["cache"]["parts"]
    assert parts[0]["start"] == 0
    assert all(before["end"] == after["start"] for before, after in itertools.pairwise(parts))
    assert parts[-1]["end"] == answer["usage"]["prompt_tokens"]
    reused = sum(part["end"] - part["start"] for part in parts if part["reason"] == "cached")
    assert reused == cached(answer) > 0
    kept = server.client.get(f"/v1/cache/explain/{answer['id']}")
    assert kept.json() == {"id": answer["id"], "cache": answer["trunkline"]["cache"]}
    error_of(server.client.get("/v1/cache/explain/nobody"), 404)


def test_no_answer_explains_without_being_asked(server: Server) -> None:
    assert "trunkline" not in server.complete(PROMPT)


def test_a_flush_empties_what_nobody_holds(server: Server) -> None:
    server.complete(PROMPT, cache_salt="flush")
    freed = server.post("/v1/cache/flush").json()["pages_freed"]
    assert freed > 0
    assert cached(server.complete(PROMPT, cache_salt="flush")) == 0


def test_a_flush_during_a_stream_changes_nothing_for_it(server: Server) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    expected = server.complete(**fields)["choices"][0]["text"]
    body = {"model": server.name, "stream": True, **fields}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.post("/v1/cache/flush").status_code == 200
        text = "".join(part for part in lines)
    assert server.complete(**fields)["choices"][0]["text"] == expected
    assert "[DONE]" in text


def test_the_tree_shows_its_nodes_and_their_tokens_on_request(server: Server) -> None:
    server.complete(PROMPT, cache_salt="tree")
    plain = server.client.get("/v1/cache/tree").json()
    [own] = [space for space in plain["namespaces"] if (space["kind"], space["value"]) == ("salt", "tree")]
    assert PROMPT.startswith(own["nodes"][0]["text"][:20])
    error_of(server.client.get("/v1/cache/tree", params={"max_nodes": 0}), 400)
    error_of(server.client.get("/v1/cache/tree", params={"max_nodes": "x"}), 400)


@pytest.fixture(scope="module")
def tenants(tiny_folder: Path) -> Iterator[Server]:
    server = Server(
        tiny_folder,
        *("--api-key", "sk-other", "--namespace-per-key", "--kv-cache-tokens", "4096", "--strict-fields"),
        *("--clamp-max-tokens", "--served-model-name", "alias", "--served-model-name", "second/alias"),
        key="sk-own",
    ).started()
    yield server
    assert server.stop() == 0


def test_keys_have_caches_of_their_own(tenants: Server) -> None:
    answer = tenants.complete(PROMPT, trunkline={"cache": True})
    with httpx.Client(base_url=tenants.url, headers={"Authorization": "Bearer sk-other"}) as other:
        body = {"model": "alias", "prompt": PROMPT, "max_tokens": 1, "trunkline": {"cache": True}}
        theirs = other.post("/v1/completions", json=body).json()
        assert cached(theirs) == 0
        assert "other_namespace" not in str(theirs["trunkline"])
        error_of(other.get(f"/v1/cache/explain/{answer['id']}"), 404)
        assert len(other.get("/v1/cache/tree").json()["namespaces"]) == 1
        assert other.post("/v1/cache/flush").json()["pages_freed"] > 0
        assert cached(other.post("/v1/completions", json=body).json()) == 0
    assert cached(tenants.complete(PROMPT)) == answer["usage"]["prompt_tokens"] - 1


def test_a_salt_divides_the_cache_of_a_key(tenants: Server) -> None:
    tenants.complete(PROMPT)
    assert cached(tenants.complete(PROMPT, cache_salt="x")) == 0
    assert cached(tenants.complete(PROMPT, cache_salt="x")) > 0


def test_strict_fields_refuse_an_unknown_one_by_name(tenants: Server) -> None:
    response = tenants.post(
        "/v1/completions", {"model": "alias", "prompt": "x", "max_tokens": 1, "surprise": 1}
    )
    error = error_of(response, 400)
    assert (error["param"], error["code"]) == ("surprise", "unknown_field")


def test_a_limit_that_does_not_fit_is_cut_and_told_where_that_is_wanted(tenants: Server) -> None:
    answer = tenants.complete([7] * 2000, max_tokens=100, ignore_eos=True)
    assert answer["trunkline"] == {"max_tokens": 48}
    assert answer["usage"]["completion_tokens"] == 48


def test_the_model_answers_to_all_its_names_and_no_other(tenants: Server) -> None:
    models = tenants.client.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["alias", "second/alias"]
    assert tenants.client.get("/v1/models/second/alias").status_code == 200
    for name, status in (("alias", 200), ("second/alias", 200), ("tiny", 404)):
        response = tenants.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})
        assert response.status_code == status


@pytest.mark.parametrize("settings", [None, "radix: {explain: false}", "radix: {eviction_policy: lfu}"])
def test_evicted_is_told_from_never_seen_unless_the_file_says_no(
    tiny_folder: Path, tmp_path: Path, settings: str | None
) -> None:
    options = ["--kv-cache-tokens", "512"]
    if settings is not None:
        (tmp_path / "engine.yaml").write_text(settings)
        options += ["--config", str(tmp_path / "engine.yaml")]
    server = Server(tiny_folder, *options).started()
    prompt = list(range(100, 400))
    for asked in (prompt, [7] * 400):
        server.complete(asked)
    answer = server.complete(prompt, trunkline={"cache": True})
    reasons = {part["reason"] for part in answer["trunkline"]["cache"]["parts"]}
    assert ("evicted" in reasons) == (settings != "radix: {explain: false}")
    assert server.stop() == 0
