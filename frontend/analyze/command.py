"""The commands: `trunkline analyze INPUT`, and `validate`, `explain` and `export` below it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from .analysis import Analysis, AnalysisOptions, analyse
from .errors import AnalyzeError, InputError
from .export import exported
from .live import Server, live_summary, validate_live
from .parts import explained, find_request
from .progress import TerminalProgress
from .reading import InputOptions, read_trace
from .terminal import print_explanation, print_live, print_summary, print_validation
from .validate import Validation, validate

DEFAULT = "report"


class _DefaultReport(TyperGroup):
    """What is no name of a command is the input of `report`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultReport,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Says why prompts missed the cache, and what would help: trunkline analyze trace.jsonl --html report.html",
)

Input = Annotated[str, typer.Argument(help="A trace, a request log or texts, gzipped or not; - reads stdin.")]
Tokenizer = Annotated[
    str | None, typer.Option(help="Model whose tokenizer and chat template turn text into tokens.")
]
PageSize = Annotated[int, typer.Option(help="Tokens in a page, for inputs with text.")]
BlockSize = Annotated[
    int | None, typer.Option(help="Tokens in a block, where the format has none of its own.")
]
TimeUnit = Annotated[
    str | None, typer.Option(help="s, ms, us or ns, if the input's times are not in the usual one.")
]
Policy = Annotated[str | None, typer.Option(help="Eviction policy: lru, lfu, slru, fifo, priority or gdsf.")]
Size = Annotated[int | None, typer.Option(help="Cache size in tokens; the log's own or the knee if absent.")]
Twins = Annotated[bool, typer.Option(help="Requests wait for a prefix that another one is computing.")]
Url = Annotated[str | None, typer.Option(help="A running Trunkline server.")]
ApiKey = Annotated[str | None, typer.Option(envvar="TRUNKLINE_API_KEY", help="The key for that server.")]
JsonFile = Annotated[str | None, typer.Option("--json", help="Write JSON to this file; - for stdout.")]


@app.command(DEFAULT)
def report(
    input: Annotated[
        str | None, typer.Argument(help="A trace, a request log or texts; - reads stdin.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page.")] = None,
    json_file: JsonFile = None,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit 1 when less than this percentage of prompt tokens is cached.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help="Policies with a curve, comma-separated; all if absent.")
    ] = None,
    sizes: Annotated[int, typer.Option(help="Points of each curve.")] = 14,
    policy: Policy = None,
    size: Size = None,
    twins_share: Twins = True,
    tokenizer: Tokenizer = None,
    page_size: PageSize = 16,
    block_size: BlockSize = None,
    time_unit: TimeUnit = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Analyses an input, or asks a running server (--url) what its cache holds."""
    if url is not None:
        if input is not None:
            raise AnalyzeError(
                "--url asks a server; to send it an input use: trunkline analyze validate INPUT --url"
            )
        summary = live_summary(Server(url, api_key))
        _show(json_file, summary, lambda console: print_live(console, summary))
        return
    if input is None:
        raise AnalyzeError("an input or --url is needed")
    wanted = tuple(policies.split(",")) if policies is not None else None
    options = AnalysisOptions(wanted, size, policy or "lru", sizes, twins_share)
    analysis = _analysed(input, InputOptions(tokenizer, page_size, block_size, time_unit), options)
    if html is not None:
        _write(html, analysis.html())
    _show(json_file, analysis.to_dict(), lambda console: print_summary(console, analysis))
    if fail_under is not None:
        _require(analysis, fail_under)


@app.command("validate")
def validate_command(
    input: Input,
    json_file: JsonFile = None,
    policy: Policy = None,
    size: Size = None,
    tokenizer: Tokenizer = None,
    page_size: PageSize = 16,
    block_size: BlockSize = None,
    time_unit: TimeUnit = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Compares predicted with reported cached tokens; exits 1 when they differ.

    Without --url the input's own reports are taken; with it the prompts are sent to the server.
    """
    options = InputOptions(tokenizer, page_size, block_size, time_unit)
    with TerminalProgress(Console(stderr=True)) as progress:
        trace = read_trace(input, options, progress)
        if url is not None:
            found = validate_live(Server(url, api_key), trace, progress)
        else:
            found = validate(trace, policy, size, progress)
    _show(json_file, _validation_dict(found), lambda console: print_validation(console, found))
    if found.num_agreeing < len(found.ids):
        raise typer.Exit(1)


@app.command("explain")
def explain_command(
    input: Input,
    request: Annotated[str, typer.Argument(help="The request's id, or #n for the n-th.")],
    json_file: JsonFile = None,
    policy: Policy = None,
    size: Size = None,
    twins_share: Twins = True,
    tokenizer: Tokenizer = None,
    page_size: PageSize = 16,
    block_size: BlockSize = None,
    time_unit: TimeUnit = None,
) -> None:
    """Explains one request: what was cached, where it diverged, what was evicted and by whom."""
    options = AnalysisOptions((), size, policy or "lru", 2, twins_share, with_advice=False)
    analysis = _analysed(input, InputOptions(tokenizer, page_size, block_size, time_unit), options)
    number = find_request(analysis.trace, request)
    if number is None:
        raise InputError(
            f"{input}: no request {request!r}; ids are such as {', '.join(analysis.trace.ids[:3])}"
        )
    found = explained(analysis.trace, analysis.reasons, number)
    _show(
        json_file, found, lambda console: print_explanation(console, analysis.trace, analysis.reasons, number)
    )


@app.command("export")
def export_command(
    input: Input,
    output: Annotated[str, typer.Argument(help="Where to write JSON lines; - for stdout.")] = "-",
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Numbers instead of ids and labels.")
    ] = False,
    tokenizer: Tokenizer = None,
    page_size: PageSize = 16,
    block_size: BlockSize = None,
    time_unit: TimeUnit = None,
) -> None:
    """Writes what the analysis needs of an input as Mooncake-style JSON lines, without any text."""
    with TerminalProgress(Console(stderr=True)) as progress:
        trace = read_trace(input, InputOptions(tokenizer, page_size, block_size, time_unit), progress)
    _write(output, "".join(line + "\n" for line in exported(trace, anonymise)))


def _analysed(input: str, reading: InputOptions, options: AnalysisOptions) -> Analysis:
    with TerminalProgress(Console(stderr=True)) as progress:
        return analyse(read_trace(input, reading, progress), options, progress)


def _show(json_file: str | None, document: Mapping[str, Any], show: Any) -> None:
    """The document as JSON where it is asked for, else (or as well) the tables."""
    if json_file is not None:
        _write(json_file, json.dumps(document, indent=1, allow_nan=False) + "\n")
    if json_file != "-":
        show(Console(soft_wrap=False))


def _write(path: str | Path, text: str) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise AnalyzeError(f"{path}: cannot be written: {error.strerror}") from error


def _require(analysis: Analysis, percentage: float) -> None:
    cached = int(analysis.trace.hit_tokens(analysis.reasons.hit_blocks).sum())
    total = analysis.trace.total_tokens
    if 100 * cached < percentage * total:
        rate = 100 * cached / total
        print(f"trunkline: {rate:.2f} % of prompt tokens are cached, below {percentage:g} %", file=sys.stderr)
        raise typer.Exit(1)


def _validation_dict(found: Validation) -> dict[str, Any]:
    return {
        "schema": "trunkline.validation.v1",
        "requests": len(found.ids),
        "agreeing": found.num_agreeing,
        "tolerance_tokens": found.tolerance,
        "prompt_tokens": int(found.prompt_tokens.sum()),
        "predicted_tokens": int(found.predicted.sum()),
        "reported_tokens": int(found.reported.sum()),
        "differences": [
            {"id": name, "prompt_tokens": prompt, "predicted": predicted, "reported": reported}
            for name, prompt, predicted, reported in found.differences()
        ],
    }


def main() -> None:
    """Runs the commands alone; what a person got wrong is one line on stderr and exit code 2."""
    from trunkline.errors import TrunklineError

    try:
        app()
    except TrunklineError as error:
        print(f"trunkline: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
