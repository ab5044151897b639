"""The table of the article that started this project, simulated, and where its figures don't add up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from trunkline.scheduler.hardware import DEVICES, MODELS, ModelShape
from trunkline.scheduler.roofline import Roofline, StepLoad, kv_pages, scaled
from trunkline.scheduler.simulation_report import Distribution, SimulationReport
from trunkline.scheduler.workload import SimulatedRequest, TokenIds, Workload, one_range

from .report import LateProgress
from .setup import Setup

DEVICE = replace(DEVICES["A100-80G"], count=2)
MODEL = MODELS["Llama-3.1-70B"]
WEIGHT_BITS = (16, 8, 4)
PAGE_SIZE = 16
# ShareGPT's mean lengths, as the vLLM paper (Kwon et al. 2023, figure 11) gives them.
PROMPT_TOKENS = 161
OUTPUT_TOKENS = 338
START_SECONDS = 10.0
WHOLE_PROMPT_BUDGET = 8192
CHUNK_BUDGET = 512
REQUESTS_PER_CLIENT = 6

ArticleReports = Mapping[str, Mapping[int, SimulationReport]]


@dataclass(frozen=True, slots=True)
class ArticleRow:
    """One of the article's three configurations and its figures (tokens/s, ms, shares of 1)."""

    name: str
    variant: str
    batched_tokens: int
    throughput: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    memory: float
    concurrency: int


ROWS: Sequence[ArticleRow] = (
    ArticleRow("static", "fcfs+static", WHOLE_PROMPT_BUDGET, 1842, 1850, 5200, 18, 320, 0.45, 16),
    ArticleRow("continuous", "fcfs+continuous", WHOLE_PROMPT_BUDGET, 3615, 320, 1840, 28, 850, 0.88, 64),
    ArticleRow("+ chunked prefill", "fcfs+chunked", CHUNK_BUDGET, 4200, 185, 620, 22, 180, 0.91, 128),
)

ASSUMPTIONS: Sequence[str] = (
    "The article names neither its weights' precision nor its requests; assumed:",
    f"- as many clients as the article has running requests, starting evenly over {START_SECONDS:.0f} s; each "
    f"sends {REQUESTS_PER_CLIENT} requests, the next one when the last is answered",
    f"- no shared prefixes; exponential lengths around ShareGPT's means, {PROMPT_TOKENS} prompt and "
    f"{OUTPUT_TOKENS} output tokens: every client sends the same lengths in an order of its own (seed 0)",
    f"- at most {WHOLE_PROMPT_BUDGET} tokens a step with whole prompts, {CHUNK_BUDGET} with chunked prefill; "
    "first come, first served",
    f"- 90% of the memory, 16-token pages, bf16 keys and values; {DEVICE.flops_efficiency:.0%} of "
    f"{DEVICE.flops / 1e12:.0f} TFLOP/s, {DEVICE.bandwidth_efficiency:.0%} of "
    f"{DEVICE.bandwidth / 1e9:,.0f} GB/s",
    "- fewer bits are read faster, at no cost for unpacking them; arithmetic stays at the bf16 rate",
)


def article_workload(clients: int, seed: int = 0) -> Workload:
    """The requests that `ASSUMPTIONS` describe, for so many clients."""
    rng = np.random.default_rng(seed)
    ids = TokenIds()
    shares = (np.arange(REQUESTS_PER_CLIENT) + 0.5) / REQUESTS_PER_CLIENT
    prompts, outputs = (
        np.ceil(-mean * np.log(1 - shares)).astype(np.int64) for mean in (PROMPT_TOKENS, OUTPUT_TOKENS)
    )
    requests = []
    for client in range(clients):
        start = START_SECONDS * client / clients
        before: str | None = None
        lengths = zip(rng.permutation(prompts).tolist(), rng.permutation(outputs).tolist(), strict=True)
        for turn, (prompt, output) in enumerate(lengths):
            starts, counts = one_range(ids.take(prompt), prompt)
            name = f"{client}.{turn}"
            requests.append(SimulatedRequest(name, start, starts, counts, output, ids.take(output), before))
            before, start = name, 0.0
    return Workload(f"{clients} clients", tuple(requests), None)


def article_setup(row: ArticleRow, bits: int) -> Setup:
    """The row's configuration with the weights in so many bits."""
    roofline = Roofline(scaled(MODEL, weight_bits=bits), DEVICE, PAGE_SIZE)
    limits: dict[str, Any] = {
        "max_num_seqs": row.concurrency,
        "max_num_batched_tokens": row.batched_tokens,
        "max_num_partial_prefills": row.concurrency,
    }
    return Setup(roofline).changed(limits).variant(row.variant)


def simulate_article(progress: LateProgress) -> ArticleReports:
    """A report for each row (by its name) and each number of bits per weight."""
    found: dict[str, dict[int, SimulationReport]] = {}
    for row in ROWS:
        workload = article_workload(row.concurrency)
        found[row.name] = {}
        for bits in WEIGHT_BITS:
            listener = progress.run(f"{row.name}, {bits}-bit weights", len(workload))
            found[row.name][bits] = article_setup(row, bits).simulate(workload, listener)
    return found


def article_table(reports: ArticleReports) -> Table:
    """The article's figures beside the simulated ones."""
    table = Table(title="Llama-3.1-70B on 2 x A100-80G: the article beside the simulation", box=SIMPLE)
    table.add_column("weights in", no_wrap=True)
    for column in ("article", *(f"{bits} bit" for bits in WEIGHT_BITS)):
        table.add_column(column, justify="right")
    for row in ROWS:
        runs = [_figures(reports[row.name][bits]) for bits in WEIGHT_BITS]
        table.add_row(row.name, style="bold")
        for index, (label, stated) in enumerate(_stated(row)):
            table.add_row(label, stated, *(run[index] for run in runs))
        table.add_section()
    return table


def _stated(row: ArticleRow) -> Sequence[tuple[str, str]]:
    return (
        ("output tokens/s", f"{row.throughput:,.0f}"),
        ("TTFT p50/p99, ms", f"{row.ttft_p50:.0f}/{row.ttft_p99:.0f}"),
        ("ITL p50/p99, ms", f"{row.itl_p50:.0f}/{row.itl_p99:.0f}"),
        ("KV held mean/peak", f"{row.memory:.0%}"),
        ("running mean/peak", f"{row.concurrency}"),
        ("preemptions", "-"),
    )


def _figures(report: SimulationReport) -> Sequence[str]:
    """The simulated figures in the order of `_stated`."""

    def both(samples: Distribution | None) -> str:
        return "-" if samples is None else f"{samples.p50 * 1000:.0f}/{samples.p99 * 1000:.0f}"

    return (
        f"{report.output_tokens_per_second:,.0f}",
        both(report.ttft),
        both(report.itl),
        f"{report.kv_in_use.mean:.0%}/{report.kv_in_use.peak:.0%}",
        f"{report.running.mean:.0f}/{report.running.peak:.0f}",
        f"{report.num_preemptions:,}",
    )


def article_remarks(reports: ArticleReports) -> Iterator[str]:
    """Where and why the simulation differs, with the figures that follow from the data sheets alone."""
    models = {bits: scaled(MODEL, weight_bits=bits) for bits in WEIGHT_BITS}
    fair = kv_pages(MODEL, DEVICE, PAGE_SIZE) * PAGE_SIZE // ROWS[-1].concurrency
    yield (
        "Weights and memory: "
        + "; ".join(f"{bits} bit {_memory(model)}" for bits, model in models.items())
        + f". For {ROWS[-1].concurrency} requests that is {fair:,} tokens each at {WEIGHT_BITS[0]} bit: the article's "
        "concurrency needs smaller weights, or very short requests."
    )
    floors = {bits: _floor_ms(model) for bits, model in models.items()}
    yield (
        "A step cannot be faster than reading the weights once: "
        + ", ".join(f"{floor:.1f} ms at {bits} bit" for bits, floor in floors.items())
        + " (peak bandwidth, no overhead). So the article's ITL p50 of 18 to 28 ms is not bf16."
    )
    most_tokens = DEVICE.count * DEVICE.flops / (2 * MODEL.num_parameters)
    yield (
        f"Every token, prompt or output, takes 2 FLOPs a parameter: at most {most_tokens:,.0f} tokens/s at the peak of "
        f"both devices, {most_tokens * DEVICE.flops_efficiency:,.0f} at {DEVICE.flops_efficiency:.0%} of it. The "
        f"article's {ROWS[-1].throughput:,.0f} output tokens/s leave next to nothing of that for prompts, and "
        f"{ROWS[-1].concurrency} requests cannot all get a token in less than "
        f"{ROWS[-1].concurrency / most_tokens * 1000:.1f} ms."
    )
    longest = max(request.max_new_tokens for request in article_workload(1).requests)
    yield (
        "In a static batch a request waits for about half of the batch before it: the article's TTFT p50 and ITL "
        f"mean batches of {2 * ROWS[0].ttft_p50 / ROWS[0].itl_p50:.0f} steps. Here a batch lasts as long as its "
        f"longest answer, up to {longest} steps, with ever more slots idle. And nothing "
        f"interrupts its decode steps: an ITL p99 of {ROWS[0].itl_p99:.0f} ms must have another cause."
    )
    for row in ROWS:
        most = row.concurrency / row.itl_p50 * 1000
        verdict = "less than" if most < row.throughput else "enough for"
        yield (
            f"{row.name}: {row.concurrency} requests with a token every {row.itl_p50:.0f} ms are {most:,.0f} "
            f"tokens/s, {verdict} the article's {row.throughput:,.0f}."
        )
    for bits in WEIGHT_BITS:
        static, continuous, chunked = (reports[row.name][bits] for row in ROWS)
        rates = [report.output_tokens_per_second for report in (static, continuous, chunked)]
        yield (
            f"{bits} bit: continuous over static {_ratio(continuous, static)}, chunked over continuous "
            f"{_ratio(chunked, continuous)} in throughput (article: 1.96x and 1.16x, with more requests "
            f"running each time); its order {'holds' if rates == sorted(rates) else 'does not hold'}."
        )


def _ratio(better: SimulationReport, worse: SimulationReport) -> str:
    return f"{better.output_tokens_per_second / worse.output_tokens_per_second:.2f}x"


def _memory(model: ModelShape) -> str:
    tokens = kv_pages(model, DEVICE, PAGE_SIZE) * PAGE_SIZE
    return f"{model.stored_bytes / 1e9:.0f} GB, room for {tokens:,} tokens of keys and values"


def _floor_ms(model: ModelShape) -> float:
    return Roofline(model, DEVICE, PAGE_SIZE).parts(StepLoad(1, 1, 1, 1)).linear_memory * 1000
