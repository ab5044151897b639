"""Where a step's time goes, from scheduling to the bytes for the server's process, as a table and as flame graphs.

    python -m benchmarks.profile [--config engine.yaml] [--flame FOLDER]

Three kinds of steps: 16 streams of about 1,000 tokens decode; a prompt of 512 tokens is computed; both at once, in a
step of 512 tokens. Functions are wrapped from outside while a profile is taken; the same steps are also timed without
that, in turns, which shows what the measurement itself costs. The last lines have the sum of all that isn't the model.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

import numpy as np
import torch

from benchmarks.profile.flame import flame_graph
from benchmarks.profile.spans import Spans
from trunkline import Engine, EngineConfig, SamplingParams
from trunkline.attention import AttentionMetadata
from trunkline.attention.cpu import CpuBackend
from trunkline.attention.native_decoder import NativeDecoder
from trunkline.frontend.options import read_engine_config
from trunkline.runtime.engine.launched_step import LaunchedStep
from trunkline.runtime.engine.output_text import OutputText
from trunkline.runtime.engine.runner import ModelRunner
from trunkline.runtime.engine.wire import Outputs, encode
from trunkline.runtime.models import layers
from trunkline.runtime.models.decoder import CausalLM
from trunkline.runtime.models.linear import Linear
from trunkline.runtime.sampling import Sampler
from trunkline.scheduler import Scheduler

STEP, NATIVE = "step", "native decoder"
# A row of the table: the spans whose own time it sums.
ROWS = {
    "schedule": ("schedule",),
    "metadata, plan": ("runner", "metadata", "attention plan"),
    "linears": ("linears", "linear"),
    "attention": ("attention",),
    "fused steps": ("norm", "rotary", "attention call"),
    "between them": ("model", NATIVE),
    "lm_head": ("lm_head", "head"),
    "sampling": ("sampling",),
    "update": ("update",),
    "text, output": (STEP, "output", "detokenize", "encode"),
}
NOT_THE_MODEL = ("schedule", "metadata, plan", "sampling", "update", "text, output")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Streams that decode, their prompt, tokens of a prefill step, steps of each kind."""

    streams: int = 16
    context: int = 1000
    chunk: int = 512
    steps: int = 32


@dataclass(frozen=True, slots=True)
class Profile:
    """Spans of some steps, with the median of their seconds and of those of steps without wrappers."""

    spans: Spans
    steps: int
    wrapped: float
    bare: float

    def rows(self) -> dict[str, float]:
        """Milliseconds a step by row of the table."""
        own: dict[str, float] = defaultdict(float)
        for path, seconds in self.spans.own().items():
            own[path[-1]] += seconds
        return {row: sum(own[name] for name in names) / self.steps * 1e3 for row, names in ROWS.items()}


class Profiler:
    """Drives one engine through steps of a kind."""

    def __init__(self, engine: Engine, sizes: Sizes) -> None:
        self._engine = engine
        self._sizes = sizes
        self._random = np.random.default_rng(0)
        self._names: list[str] = []

    def decode(self) -> Profile:
        """Every stream decodes."""
        self._start_streams()
        return self._measure(lambda: None)

    def prefill(self) -> Profile:
        """One prompt of a chunk's length."""
        return self._measure(lambda: self._add(self._sizes.chunk, 1))

    def mixed(self) -> Profile:
        """Every stream decodes, and the rest of a chunk is prompt."""
        self._start_streams()
        return self._measure(lambda: self._add(self._sizes.chunk - self._sizes.streams, 1))

    def _measure(self, prepare: Callable[[], object]) -> Profile:
        spans = Spans()
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * self._sizes.steps + 2):
            prepare()
            while self._engine.back_pages():  # as the engine's process does while it has nothing to compute
                pass
            wrapped = number % 2 == 1
            if wrapped:
                wrap(spans, self._engine)
            started = time.perf_counter()
            try:
                self._step(spans)
            finally:
                spans.restore()
            seconds[wrapped].append(time.perf_counter() - started)
            if number < 2:  # the first of each kind warms up
                spans.seconds.clear()
        self._end()
        steps = self._sizes.steps
        return Profile(
            spans, steps, statistics.median(seconds[True][1:]), statistics.median(seconds[False][1:])
        )

    def _step(self, spans: Spans) -> None:
        """What the engine's process does for a step: compute, and make a message of what came of it."""
        if not spans.is_wrapping:
            encode(Outputs(self._engine.step(), self._engine.stats(), time.time()))
            return
        before = self._native_seconds()
        with spans.span(STEP):
            outputs = self._engine.step()
            with spans.span("encode"):
                encode(Outputs(outputs, self._engine.stats(), time.time()))
        for path in [path for path in spans.seconds if path[-1] == NATIVE]:
            for phase, seconds in self._native_seconds().items():
                spans.seconds[*path, phase] += seconds - before.get(phase, 0.0)

    def _native_seconds(self) -> dict[str, float]:
        """What the native decoder says of its own time: nothing inside of it can be wrapped."""
        runner = self._engine.runner
        backend = runner._backend
        native = runner.model.native_decoder(backend) if isinstance(backend, CpuBackend) else None
        return {} if native is None else dict(native.seconds)

    def _start_streams(self) -> None:
        sizes = self._sizes
        to_start = 2 * sizes.streams * sizes.context // sizes.chunk
        num_output = to_start + 2 * sizes.steps + 16
        waiting = {self._add(sizes.context, num_output) for _ in range(sizes.streams)}
        while waiting:
            waiting -= {output.id for output in self._engine.step()}

    def _add(self, length: int, num_output: int) -> str:
        prompt = self._random.integers(3, self._engine.vocab_size, length)
        params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
        name = self._engine.add_request(prompt, params)
        self._names.append(name)
        return name

    def _end(self) -> None:
        for name in self._names:
            self._engine.abort(name)
        self._names.clear()
        self._engine.flush_cache()


def wrap(spans: Spans, engine: Engine) -> None:
    """Puts a span around each part of a step."""
    model, backend = engine.runner.model, type(engine.runner._backend)
    spans.wrap(Scheduler, "schedule", "schedule")
    spans.wrap(Scheduler, "update", "update")
    spans.wrap(ModelRunner, "launch", "runner")
    spans.wrap(AttentionMetadata, "build", "metadata")
    spans.wrap(backend, "plan", "attention plan")
    spans.wrap(CausalLM, "forward", "model")
    spans.wrap(NativeDecoder, "forward", NATIVE)
    spans.wrap(layers.RMSNorm, "__call__", "norm")
    spans.wrap(layers.RMSNorm, "add", "norm")
    spans.wrap(Linear, "__call__", lambda linear, *_: "lm_head" if linear is model._head else "linears")
    if "_attend" in backend.__dict__:  # the native backend: its fused kernel is a step of its own
        spans.wrap(backend, "forward_fused", "attention call")
        spans.wrap(backend, "_attend", "attention")
    else:
        spans.wrap(backend, "forward_fused", "attention")
    spans.wrap(Sampler, "begin", "sampling")
    spans.wrap(LaunchedStep, "result", "sampling")
    spans.wrap(Engine, "_emit", "output")
    spans.wrap(OutputText, "append", "detokenize")


def table(profiles: Mapping[str, Profile]) -> str:
    """Milliseconds a step, and shares, as a Markdown table."""
    columns = {name: profile.rows() for name, profile in profiles.items()}
    totals = {name: sum(rows.values()) for name, rows in columns.items()}
    lines = ["| ms a step | " + " | ".join(profiles) + " |", "|" + " --- |" * (len(profiles) + 1)]

    def line(title: str, values: Mapping[str, float]) -> None:
        cells = [f"{value:.2f} ({value / totals[name]:.1%})" for name, value in values.items()]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")

    for row in ROWS:
        line(row, {name: rows[row] for name, rows in columns.items()})
    line("all", totals)
    line("all but the model", {n: sum(rows[row] for row in NOT_THE_MODEL) for n, rows in columns.items()})
    lines.append("")
    for name, profile in profiles.items():
        lines.append(
            f"{name}: median step {profile.wrapped * 1e3:.2f} ms with wrappers, {profile.bare * 1e3:.2f} without"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", type=FilePath, help="YAML with engine settings, such as quantization: int8"
    )
    parser.add_argument(
        "--steps", type=int, default=Sizes().steps, help="of each kind, with and without wrappers"
    )
    parser.add_argument("--flame", type=FilePath, help="folder for one SVG file a kind of step")
    options = parser.parse_args()
    sizes = Sizes(steps=options.steps)
    base = read_engine_config(options.config) if options.config else EngineConfig()
    scheduler = replace(base.scheduler, max_num_batched_tokens=sizes.chunk, target_itl_ms=None)
    engine = Engine(replace(base, kv_cache_tokens=base.kv_cache_tokens or 65536, scheduler=scheduler))
    profiler = Profiler(engine, sizes)
    kinds = {
        f"decode {sizes.streams} x {sizes.context:,}": profiler.decode,
        f"prefill {sizes.chunk}": profiler.prefill,
        "both": profiler.mixed,
    }
    print(
        f"{engine.model_name}, {engine.runner.model.dtype}, quantization {engine.config.quantization}, "
        f"{engine.backend_name} attention, torch {torch.__version__}, {torch.get_num_threads()} threads\n"
    )
    profiles = {name: measure() for name, measure in kinds.items()}
    print(table(profiles))
    if options.flame is not None:
        options.flame.mkdir(parents=True, exist_ok=True)
        for name, profile in profiles.items():
            file = options.flame / f"{name.split()[0]}.svg"
            file.write_text(flame_graph(profile.spans.seconds, profile.steps, f"{name}: one step"))


if __name__ == "__main__":
    main()
