"""`trunkline run`: rows in, results out, and nothing run twice."""

import json
import sys
from pathlib import Path

import pytest

from tests.frontend.server.serving import Server
from trunkline.frontend import cli

PROGRAM = """
from trunkline import function, gen

@function(temperature=0.0, max_tokens=3)
def ask(s, question, fail=False):
    if fail:
        raise ValueError("asked to")
    s += "Q: " + question + " A:" + gen("answer")
    return {"asked": question}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "ask.py").write_text(PROGRAM)
    rows = [{"question": "one"}, {"question": "two", "fail": True}, {"question": "three"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, files: Path, *more: str, program: str = "ask.py") -> int:
    arguments = ["run", str(files / program), "--input", str(files / "in.jsonl")]
    arguments += ["--output", str(files / "out.jsonl"), *more]
    monkeypatch.setattr(sys, "argv", ["trunkline", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def records(files: Path) -> list[dict]:
    return [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]


def test_rows_come_in_order_failures_are_marked_and_run_again(
    monkeypatch: pytest.MonkeyPatch, files: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ("--server", server.url, "--api-key", "sk-lang")
    assert run(monkeypatch, files, *there) == 1
    found = records(files)
    assert [record["index"] for record in found] == [0, 1, 2]
    assert found[0]["value"] == {"asked": "one"}
    assert found[0]["text"] == "Q: one A:" + found[0]["variables"]["answer"]
    assert found[1]["error"] == "asked to"
    assert "3 rows in" in capsys.readouterr().err

    (files / "ask.py").write_text(PROGRAM.replace("if fail:", "if False:"))
    with (files / "out.jsonl").open("a") as file:
        file.write('{"index": 9, "inp')  # as a crash leaves it
    assert run(monkeypatch, files, *there) == 0
    assert "1 run now, 0 failed" in capsys.readouterr().err
    again = records(files)
    assert [again[0], again[2]] == [found[0], found[2]]
    assert again[1]["value"] == {"asked": "two"}
    assert run(monkeypatch, files, *there) == 0
    assert "0 run now" in capsys.readouterr().err


def test_limit_takes_the_first_rows(monkeypatch: pytest.MonkeyPatch, files: Path, server: Server) -> None:
    assert run(monkeypatch, files, "--server", server.url, "--api-key", "sk-lang", "--limit", "1") == 0
    assert len(records(files)) == 1


@pytest.mark.parametrize(
    ("change", "program", "message"),
    [
        ({}, "none.py", "there is no such Python file"),
        ({}, "ask.py:tell", "no @function 'tell'; there are ask"),
        ({"ask.py": "x = 1"}, "ask.py", "name one of its @functions"),
        ({"in.jsonl": "{"}, "ask.py", "line 1: Expecting property name"),
        ({"in.jsonl": "[1]"}, "ask.py", r"line 1: expected an object, got [1]"),
        ({"out.jsonl": '{"a": 1}\n'}, "ask.py", "is no output of this command"),
        (
            {"out.jsonl": '{"index": 0, "input": {"question": "zero"}, "text": ""}\n'},
            "ask.py",
            "is of another input: row 0 differs",
        ),
    ],
)
def test_what_can_not_be_run_is_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str],
    program: str,
    message: str,
) -> None:
    for name, text in change.items():
        (files / name).write_text(text)
    assert run(monkeypatch, files, program=program) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
