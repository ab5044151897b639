"""The commands and the code in the README and in docs/ are understood by the programs they are for."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import typer

import trunkline
from trunkline.frontend.cli import app

ROOT = Path(trunkline.__file__).resolve().parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    (page.name, line.strip())
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    if re.match(r"\s*trunkline [a-z]", line)
]


def parse(arguments: list[str]) -> None:
    """Resolves the sub-command and parses its arguments; raises what a person would see for a wrong one."""
    command = typer.main.get_command(app)
    context = command.make_context("trunkline", arguments)
    while hasattr(command, "resolve_command"):
        rest = (
            [*context._protected_args, *context.args] if hasattr(context, "_protected_args") else context.args
        )
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_command_in_the_docs_is_one_that_we_take(page: str, line: str) -> None:
    parse(shlex.split(line, comments=True)[1:])


def test_a_command_with_a_wrong_option_would_be_found() -> None:
    with pytest.raises(Exception, match="no-such-option"):
        parse(["serve", "--no-such-option"])


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_script_that_the_docs_run_is_there() -> None:
    for page in PAGES:
        for script in re.findall(r"benchmarks/(\w+)\.py", page.read_text(encoding="utf-8")):
            assert (ROOT / "benchmarks" / f"{script}.py").exists(), f"{page.name}: {script}"


def test_the_readmes_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    assert [result["urgent"].strip() in ("yes", "no") for result in names["batch"]] == [True, True]
    counts = [
        (int(cached), int(total))
        for cached, total in re.findall(r"(\d+) of (\d+)$", printed.getvalue(), re.M)
    ]
    assert len(counts) == 4
    assert counts[0][0] == 0
    assert all(0 < cached < total for cached, total in counts[1:])
