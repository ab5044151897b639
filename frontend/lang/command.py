"""`trunkline run`: a program over the rows of a file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trunkline.errors import ConfigError
from trunkline.frontend.options import EngineOptions, Quantization

if TYPE_CHECKING:
    from .backends import Backend
    from .batch import Result
    from .function import Program

__all__ = ["run"]

ProgramFile = Annotated[
    str, typer.Argument(help="A Python file with one @function; file.py:name where it has more.")
]
Input = Annotated[Path, typer.Option(help="JSON lines: an object of the function's arguments a line.")]
Output = Annotated[
    Path, typer.Option(help="JSON lines: a result a row. Rows that it has already are not run again.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only so many rows, from the start.")]
Server = Annotated[
    str | None, typer.Option(help="URL of a Trunkline server; an engine in this process if absent.")
]
Key = Annotated[str, typer.Option(envvar="TRUNKLINE_API_KEY", help="Key for the server.")]
Model = Annotated[
    str | None, typer.Option(help="Model directory, .gguf file or hub id; the embedded one if absent.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file with engine settings.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and answer together.")]
KvTokens = Annotated[int | None, typer.Option(help="Tokens the KV cache holds; a share of memory if absent.")]


def run(
    program: ProgramFile,
    input: Input,
    output: Output,
    limit: Limit = None,
    server: Server = None,
    api_key: Key = "none",
    model: Model = None,
    dtype: Dtype = "auto",
    quantization: Quantization = None,
    config: ConfigFile = None,
    max_model_len: MaxModelLen = None,
    kv_cache_tokens: KvTokens = None,
) -> None:
    """Runs a program for each row of a file, all at once; run again, it does what is missing or failed."""
    wanted = _load(program)
    rows = list(_read_rows(input))[:limit]
    done = _finished(output, rows)
    left = [index for index in range(len(rows)) if index not in done]
    if left:
        options = EngineOptions(model, dtype, quantization, config, max_model_len, kv_cache_tokens)
        bound = wanted.using(_backend(server, api_key, options))
        asyncio.run(_run_rows(bound, rows, left, output))
    records = _sort(output)
    failed = [record["index"] for record in records if "error" in record]
    print(f"{len(records)} rows in {output}: {len(left)} run now, {len(failed)} failed", file=sys.stderr)
    if failed:
        sys.exit(1)


async def _run_rows(
    program: Program[..., Any, Any], rows: list[dict[str, Any]], left: list[int], output: Path
) -> None:
    """Runs the rows that are left and appends each result as it comes."""
    with output.open("a", encoding="utf-8") as file:

        def finished(number: int, result: Result[Any]) -> None:
            index = left[number]
            file.write(
                json.dumps(_record(index, rows[index], result), ensure_ascii=False, default=str) + "\n"
            )
            file.flush()

        await program.arun_batch([rows[index] for index in left], progress=True, finished=finished)


def _record(index: int, row: dict[str, Any], result: Result[Any]) -> dict[str, Any]:
    if not result.ok:
        return {"index": index, "input": row, "error": str(result.error), "text": result.text()}
    return {
        "index": index,
        "input": row,
        "value": result.value,
        "variables": result.variables,
        "text": result.text(),
    }


def _load(program: str) -> Program[..., Any, Any]:
    """The program that a file defines; raises ConfigError where that is none, or several and none was named."""
    from .function import Program

    path, _, name = program.partition(":")
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"program {path}: there is no such Python file")
    module = module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, Program) and value.__module__ == spec.name
    }
    if name and name not in found:
        raise ConfigError(f"program {path}: no @function {name!r}; there are {', '.join(found) or 'none'}")
    if not name and len(found) != 1:
        raise ConfigError(
            f"program {path}: name one of its @functions, as in {path}:name; there are {', '.join(found) or 'none'}"
        )
    return found[name] if name else next(iter(found.values()))


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"input {path}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}"
        ) from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"input {path}, line {number}: {error}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"input {path}, line {number}: expected an object, got {row!r:.60}")
            yield row


def _finished(output: Path, rows: list[dict[str, Any]]) -> set[int]:
    """Rows with a result already. What failed, or was cut by a crash, is dropped from the file, to be run again.

    Raises ConfigError for a file that is of another input, or no output at all.
    """
    if not output.exists():
        return set()
    kept = []
    for line in output.read_text(encoding="utf-8").split("\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or not {"index", "input", "text"} <= record.keys():
            raise ConfigError(f"output {output} exists and is no output of this command")
        index = record["index"]
        if index < len(rows) and record["input"] != rows[index]:
            raise ConfigError(
                f"output {output} is of another input: row {index} differs; remove it or name another"
            )
        if "error" not in record:
            kept.append(record)
    _write(output, kept)
    return {record["index"] for record in kept}


def _sort(output: Path) -> list[dict[str, Any]]:
    """Puts the results in the order of their rows."""
    if not output.exists():
        return []
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").split("\n") if line]
    records.sort(key=lambda record: int(record["index"]))
    _write(output, records)
    return records


def _write(output: Path, records: list[dict[str, Any]]) -> None:
    """All of it or nothing."""
    beside = output.with_name(output.name + ".part")
    beside.write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8"
    )
    os.replace(beside, output)


def _backend(server: str | None, api_key: str, options: EngineOptions) -> Backend:
    from .backends import resolve
    from .trunkline_server import TrunklineServer

    return TrunklineServer(server, api_key=api_key) if server is not None else resolve(options.start())
