"""The command: what was typed becomes a workload and one or more setups; their reports are printed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from trunkline import __version__
from trunkline.errors import ConfigError
from trunkline.scheduler.config import SchedulerConfig
from trunkline.scheduler.hardware import find_device
from trunkline.scheduler.roofline import Roofline, scaled
from trunkline.scheduler.simulation_report import SimulationReport
from trunkline.scheduler.workload import GeneratorConfig, Workload, generate

from .article import ASSUMPTIONS, article_remarks, article_table, simulate_article
from .machine import calibrate_from_file, resolve_model
from .report import LateProgress, report_table, to_json
from .setup import Setup, default_page_size, parse_assignment
from .traces import read_trace

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def simulate(
    context: typer.Context,
    workload: Annotated[
        str, typer.Argument(help="A trace file; or generate, generate:turns=4,rate=2,...; or article.")
    ],
    model: Annotated[str, typer.Option(help="A preset, a model directory or a .gguf file.")] = "Llama-3.1-8B",
    device: Annotated[str, typer.Option(help="A100-80G, H100, H200, cpu; 8xH100 for several.")] = "H100",
    weight_bits: Annotated[
        float | None, typer.Option(help="Bits per weight; the model's own if absent.")
    ] = None,
    kv_bits: Annotated[
        float | None, typer.Option(help="Bits per number in the KV cache; 16 if absent.")
    ] = None,
    memory_utilisation: Annotated[float, typer.Option(help="Share of the device memory to use.")] = 0.9,
    kv_cache_tokens: Annotated[
        int | None, typer.Option(help="Tokens of KV cache, instead of what fits.")
    ] = None,
    page_size: Annotated[
        int | None, typer.Option(help="Tokens in a page; by the workload if absent.")
    ] = None,
    eviction_policy: Annotated[str, typer.Option(help="lru, lfu, slru, fifo, priority or gdsf.")] = "lru",
    rate: Annotated[
        float | None, typer.Option(help="Poisson arrivals a second, instead of the trace's.")
    ] = None,
    speed: Annotated[float, typer.Option(help="Recorded arrivals come so many times as fast.")] = 1.0,
    limit: Annotated[int | None, typer.Option(help="Only the first so many requests.")] = None,
    seed: Annotated[int, typer.Option(help="Of Poisson arrivals and generated workloads.")] = 0,
    policy: Annotated[str | None, typer.Option(help="fcfs, lpm, dfs-weight, lof, priority, random.")] = None,
    batching: Annotated[str | None, typer.Option(help="continuous or static.")] = None,
    chunked_prefill: Annotated[bool | None, typer.Option(help="Cut long prompts into chunks.")] = None,
    prefix_caching: Annotated[bool | None, typer.Option(help="Reuse what is cached.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Most tokens in a step.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests running.")] = None,
    target_itl_ms: Annotated[float | None, typer.Option(help="Bound the gap between tokens.")] = None,
    preemption_mode: Annotated[str | None, typer.Option(help="recompute, swap, auto, heuristic.")] = None,
    num_host_pages: Annotated[int | None, typer.Option(help="Pages of host memory to swap to.")] = None,
    asked_tokens: Annotated[
        int | None, typer.Option(help="Most tokens each client asks for; absent: exactly what it gets.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other scheduler setting, name=value; may be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with scheduler settings.")] = None,
    compare: Annotated[
        str | None, typer.Option(help="Variants side by side: fcfs,lpm or static,chunked,chunked+no-cache.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="JSON with measured steps to fit the device to.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the report there; - is stdout.")
    ] = None,
) -> None:
    """Serves a trace on a machine that isn't here: the real scheduler and cache under a virtual clock."""
    console = Console(stderr=json_file == "-", highlight=False)
    output = _Output(console, json_file)
    if workload == "article":
        _refuse_other_options(context)
        _article(output)
        return
    shape = scaled(resolve_model(model), weight_bits, kv_bits)
    base = SchedulerConfig() if config is None else SchedulerConfig.from_yaml(config)
    machine = find_device(device)
    requests = _Arrivals(rate, speed, limit, seed).read(workload)
    roofline = Roofline(shape, machine, default_page_size(requests) if page_size is None else page_size)
    typed: dict[str, Any] = {
        "scheduling_policy": policy,
        "batching": batching,
        "enable_chunked_prefill": chunked_prefill,
        "enable_prefix_caching": prefix_caching,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "target_itl_ms": target_itl_ms,
        "preemption_mode": preemption_mode,
        "num_host_pages": num_host_pages,
    }
    changes = {name: value for name, value in typed.items() if value is not None}
    for text in settings or ():
        changes |= parse_assignment(text)
    setup = Setup(roofline, base, eviction_policy, kv_cache_tokens, memory_utilisation, asked_tokens)
    _run(output, requests, setup.changed(changes), compare, calibration)


def _refuse_other_options(context: typer.Context) -> None:
    """The article's simulation is fixed, so that its table is the same for everybody."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in ("workload", "json_file"):
            raise ConfigError(f"simulate article takes no option but --json, got --{name.replace('_', '-')}")


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Which requests of a workload arrive, and when."""

    rate: float | None
    speed: float
    limit: int | None
    seed: int

    def read(self, text: str) -> Workload:
        """The workload `text` names: a file, or `generate` with its settings behind a colon."""
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit must be at least 1, got {self.limit}")
        word, _, rest = text.partition(":")
        workload = (
            self._generate(rest) if word == "generate" else read_trace(Path(text), self.rate, self.seed)
        )
        if self.limit is not None:
            workload = workload.head(self.limit)
        return workload if self.speed == 1 else workload.faster(self.speed)

    def _generate(self, text: str) -> Workload:
        values: dict[str, Any] = {"seed": self.seed}
        for part in filter(None, text.split(",")):
            values |= parse_assignment(part)
        if self.rate is not None:
            values["rate"] = self.rate
        if self.limit is not None:
            values.setdefault("num_requests", self.limit)
        try:
            return generate(GeneratorConfig(**values))
        except TypeError as error:
            raise ConfigError(f"workload {text!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Output:
    """Where results go: a person's console and, if asked for, a JSON file or stdout."""

    console: Console
    json_file: str | None

    def write(self, document: dict[str, Any]) -> None:
        if self.json_file is None:
            return
        text = to_json({"trunkline": __version__} | document)
        if self.json_file == "-":
            print(text, end="")
            return
        try:
            Path(self.json_file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {self.json_file}: {error.strerror}") from None

    def progress(self) -> LateProgress:
        return LateProgress(Console(stderr=True))


def _run(
    output: _Output, workload: Workload, setup: Setup, compare: str | None, calibration: Path | None
) -> None:
    """Simulate the setup, or each variant of it that is to be compared."""
    console = output.console
    document: dict[str, Any] = {"workload": {"name": workload.name, "notes": workload.notes}}
    if calibration is not None:
        fit = calibrate_from_file(setup.roofline, calibration)
        setup = replace(setup, roofline=fit.roofline)
        fitted = ", ".join(f"{name} {getattr(fit.roofline.device, name):.4g}" for name in fit.fitted)
        console.print(
            f"calibrated with {fit.num_steps} steps: {fitted}; "
            f"off by {fit.mean_error:.1%} on average, {fit.max_error:.1%} at most"
        )
        document["calibration"] = {
            "num_steps": fit.num_steps,
            "mean_error": fit.mean_error,
            "max_error": fit.max_error,
            "fitted": fit.fitted,
        }
    setups = {name: setup.variant(name) for name in compare.split(",")} if compare else {"simulated": setup}
    reports: dict[str, SimulationReport] = {}
    with output.progress() as progress:
        for name, variant in setups.items():
            reports[name] = variant.simulate(workload, progress.run(name, len(workload)))
    device = setup.roofline.device
    pages = setup.num_pages
    title = (
        f"{workload.name}: {setup.model.name} on {device.count} x {device.name}, "
        f"{pages * setup.roofline.page_size:,} tokens of KV cache in pages of {setup.roofline.page_size}"
    )
    console.print(report_table(title, reports))
    for note in workload.notes:
        console.print(f"- {note}")
    document["runs"] = [
        {"name": name, "settings": setups[name].describe(), "report": report.to_dict()}
        for name, report in reports.items()
    ]
    output.write(document)


def _article(output: _Output) -> None:
    """The article's table beside its simulation, what was assumed, and where they differ and why."""
    with output.progress() as progress:
        reports = simulate_article(progress)
    remarks = list(article_remarks(reports))
    output.console.print(article_table(reports))
    for line in (*ASSUMPTIONS, "", *remarks):
        output.console.print(line)
    runs = [
        {"name": name, "weight_bits": bits, "report": report.to_dict()}
        for name, by_bits in reports.items()
        for bits, report in by_bits.items()
    ]
    output.write({"assumptions": list(ASSUMPTIONS), "remarks": remarks, "runs": runs})
