"""The `trunkline` command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from trunkline import __version__
from trunkline.errors import ConfigError, TrunklineError

from .analyze.command import app as analyze_app
from .chat import HELP, converse
from .lang.command import run
from .options import EngineOptions, Quantization, SamplingOptions
from .server.command import serve
from .simulate.command import simulate

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)

app.command()(run)
app.command()(serve)
app.command()(simulate)
app.add_typer(analyze_app, name="analyze")

Model = Annotated[
    str | None,
    typer.Option(help="Model directory, .gguf file or hub id; the embedded SmolLM2-135M if absent."),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file with engine settings.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and answer together.")]
KvTokens = Annotated[int | None, typer.Option(help="Tokens the KV cache holds; a share of memory if absent.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option()]
TopK = Annotated[int, typer.Option(help="0 is off.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same answer.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends an answer; may be repeated.")]


@app.command()
def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; - or none reads stdin, a line each.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file with a prompt on each line.")
    ] = None,
    chat_template: Annotated[
        bool, typer.Option("--chat", help="Put each prompt into the chat template.")
    ] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One JSON object a line, with token counts.")
    ] = False,
    model: Model = None,
    dtype: Dtype = "auto",
    quantization: Quantization = None,
    config: ConfigFile = None,
    max_model_len: MaxModelLen = None,
    kv_cache_tokens: KvTokens = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
    stop: Stop = None,
) -> None:
    """Continues prompts, in order; prompts that begin alike share their prefix."""
    texts = list(_read_prompts(prompts or [], file))
    params = SamplingOptions(max_tokens, temperature, top_p, top_k, seed, stop).build()
    engine = EngineOptions(model, dtype, quantization, config, max_model_len, kv_cache_tokens).start()
    inputs: list[Any] = (
        [engine.chat_prompt([{"role": "user", "content": text}]) for text in texts]
        if chat_template
        else list(texts)
    )
    for text, generation in zip(
        texts, engine.generate(inputs, params, progress=sys.stderr.isatty()), strict=True
    ):
        if jsonl:
            print(json.dumps(_record(text, generation), ensure_ascii=False))
        elif len(texts) == 1:
            print(generation.text)
        else:
            print(f"--- {text}\n{generation.text}")


@app.command()
def chat(
    system: Annotated[str | None, typer.Option(help="System prompt; the template's own if absent.")] = None,
    model: Model = None,
    dtype: Dtype = "auto",
    quantization: Quantization = None,
    config: ConfigFile = None,
    max_model_len: MaxModelLen = None,
    kv_cache_tokens: KvTokens = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
) -> None:
    """Talks with a model in the terminal and shows what each turn took from the cache."""
    params = SamplingOptions(max_tokens, temperature, top_p, top_k, seed, None).build()
    engine = EngineOptions(model, dtype, quantization, config, max_model_len, kv_cache_tokens).start()
    engine.chat_prompt([{"role": "user", "content": "Hello"}])  # a model without a template says so at once
    console = Console()
    console.print(f"[dim]{engine.model_name}. {HELP}[/dim]", highlight=False)
    converse(engine, params, system, _read_lines(console), console)


def _read_prompts(prompts: list[str], file: Path | None) -> Iterator[str]:
    """Prompts from the arguments, then from the file; from stdin where neither gives any."""
    if file is not None:
        try:
            yield from (line for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--file {file}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}"
            ) from None
    for prompt in prompts or ([] if file else ["-"]):
        if prompt == "-":
            yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        else:
            yield prompt


def _read_lines(console: Console) -> Iterator[str]:
    """Lines as they are typed; ends with the input or at Ctrl-C."""
    while True:
        try:
            yield console.input("[bold]> [/bold]" if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            return


def _record(text: str, generation: Any) -> dict[str, Any]:
    choice = generation.choices[0]
    return {
        "prompt": text,
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "num_prompt_tokens": generation.num_prompt_tokens,
        "num_cached_tokens": choice.num_cached_tokens,
        "num_output_tokens": len(choice.token_ids),
        **({"error": choice.error} if choice.error else {}),
    }


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trunkline {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """A prefix-caching LLM runtime."""


def main() -> None:
    """Runs the command; what a person got wrong is one line on stderr and exit code 2."""
    # Read when torch is imported. Threads that spin at a barrier while another process has their core cost a server
    # with its client on the same machine 2 to 7 times (docs/performance.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app()
    except TrunklineError as error:
        print(f"trunkline: {error}", file=sys.stderr)
        sys.exit(2)
