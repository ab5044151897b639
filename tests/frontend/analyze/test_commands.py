"""The commands, as typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trunkline.frontend.analyze.command import app
from trunkline.frontend.analyze.errors import AnalyzeError, InputError

ARXIV = str(Path(__file__).resolve().parents[2] / "data" / "mooncake_arxiv_first1000.jsonl.gz")
FEW = ["--policies", "lfu", "--sizes", "3"]


def run(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert found.exit_code == code, found.output
    return found.output


def fails(*arguments: str) -> BaseException:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exception is not None
    return found.exception


def test_summary_states_hits_reasons_and_advice() -> None:
    text = " ".join(run(ARXIV, *FEW).split())
    assert "finds 3,826,202 tokens (39.07 % of prompt tokens) in 7,479 blocks (37.99 % of blocks)" in text
    for part in (
        "reasons, lru with 187,904 tokens of cache",
        "evicted",
        "shared prefixes",
        "what would help",
    ):
        assert part in text


def test_json_on_stdout_is_all_there_is_and_is_the_same_each_time() -> None:
    first, second = run(ARXIV, *FEW, "--json", "-"), run(ARXIV, *FEW, "--json", "-")
    assert first == second
    assert json.loads(first)["schema"] == "trunkline.analysis.v1"


def test_html_and_json_files_are_written(tmp_path: Path) -> None:
    page, document = tmp_path / "r.html", tmp_path / "r.json"
    run(ARXIV, *FEW, "--html", str(page), "--json", str(document))
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(document.read_text())["totals"]["requests"] == 1000


def test_fail_under_decides_the_exit_code() -> None:
    run(ARXIV, *FEW, "--fail-under", "28.7")
    run(ARXIV, *FEW, "--fail-under", "28.8", code=1)
    run(ARXIV, *FEW, "--size", "10000000", "--fail-under", "39", code=0)


def test_explain_shows_one_prompt_by_id_or_number() -> None:
    by_id, by_number = run("explain", ARXIV, "900"), run("explain", ARXIV, "#900")
    assert by_id == by_number
    assert "diverged" in by_id
    found = json.loads(run("explain", ARXIV, "900", "--json", "-"))
    assert found["parts"][-1]["end"] == found["prompt_tokens"]
    error = fails("explain", ARXIV, "nobody")
    assert isinstance(error, InputError)
    assert "no request 'nobody'; ids are such as 1, 2, 3" in str(error)


@pytest.mark.parametrize("anonymise", [True, False])
def test_an_export_reads_back_as_the_same_analysis(tmp_path: Path, anonymise: bool) -> None:
    out = tmp_path / "out.jsonl"
    run("export", ARXIV, str(out), *(["--anonymise"] if anonymise else []))
    documents: list[dict[str, Any]] = [
        json.loads(run(source, *FEW, "--json", "-")) for source in (ARXIV, str(out))
    ]
    for document in documents:
        del document["input"]
    assert documents[0] == documents[1]


def test_anonymised_text_leaves_no_words_ids_or_dates(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [
        {"id": f"secret-{n}", "model": "secret-model", "user": "secret-ann", "cache_salt": "secret-salt"}
        | {"messages": [{"role": "user", "content": "secret words " * 20}], "created": 1_700_000_000 + n}
        for n in range(3)
    ]
    log.write_text("\n".join(map(json.dumps, rows)))
    text = run("export", str(log), "-", "--anonymise")
    assert "secret" not in text
    assert "17000" not in text
    assert [json.loads(line)["tenant"] for line in text.splitlines()] == ["t1"] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "an input or --url is needed"),
        ((ARXIV, "--url", "http://127.0.0.1:1"), "--url asks a server"),
        ((ARXIV, "--policy", "mru"), "policy 'mru' is not one of"),
        ((ARXIV, "--time-unit", "h"), "time unit 'h' is not one of s, ms, us, ns"),
        ((ARXIV, "--size", "100"), "a cache of 100 tokens is less than one block of 512"),
        (("--url", "somewhere"), "'somewhere' is not an address such as http://127.0.0.1:8000"),
    ],
)
def test_what_was_typed_wrong_is_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    error = fails("report", *arguments)
    assert isinstance(error, AnalyzeError)
    assert message in str(error)
