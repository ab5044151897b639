"""Trunkline on a CUDA GPU: attention against its roofline, cascade, CUDA graphs, throughput. Under ten minutes.

    python -m benchmarks.gpu                 # Llama-3.1-8B's shape with random weights
    python -m benchmarks.gpu --device cpu    # the same script on a tiny shape, to see that it runs

Prints a report and, with --json, writes its figures. Nothing is downloaded. The first run compiles FlashInfer's kernels.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from benchmarks.gpu_engine import LLAMA_8B, TINY, decode_seconds, make_engine, throughput
from benchmarks.gpu_kernels import Case, attention_seconds, cascade_seconds, compile_kernels, limits
from trunkline.attention import AttentionConfig
from trunkline.runtime.models import ModelConfig

# Layers whose keys are in memory at a time: enough that no cache holds them.
LAYERS = 4


def cases(tiny: bool) -> list[Case]:
    """Decodes and chunks, with and without a shared prefix."""
    unit = 16 if tiny else 1
    return [
        Case("decode 64 x 4,096", ((4095 // unit, 1),) * (64 // unit)),
        Case("decode 16 x 1,024", ((1023 // unit, 1),) * 16),
        Case("decode 1 x 8,192", ((8191 // unit, 1),)),
        Case("prefill 2,048 from nothing", ((0, 2048 // unit),)),
        Case("prefill 512 on 8,192", ((8192 // unit, 512 // unit),)),
        Case("prefill 16 x 32 on 1,024", ((1024 // unit, 32),) * 16),
    ]


def attention(config: ModelConfig, device: torch.device, backend: str, tiny: bool) -> dict[str, Any]:
    """Each case against the floor that this run's bandwidth and matrix rate set."""
    shape = config.attention_config(16)
    layers = AttentionConfig(LAYERS, shape.num_heads, shape.num_kv_heads, shape.head_dim, 16, shape.scale)
    best = limits(device, quick=tiny)
    print(f"measured: {best.bandwidth / 1e9:.0f} GB/s read, {best.rate / 1e12:.2f} TFLOP/s bf16 product\n")
    figures: dict[str, Any] = {"bandwidth": best.bandwidth, "rate": best.rate}
    for case in cases(tiny):
        took, floor = attention_seconds(backend, layers, device, case), case.floor(layers, best)
        figures[case.name] = {"seconds": took, "floor": floor}
        print(f"{case.name:28} {took * 1e6:10.1f} µs a layer   {100 * floor / took:5.1f} % of the roofline")
    return figures


def cascade(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """A shared prefix read once, and by each request."""
    shape = config.attention_config(16)
    layers = AttentionConfig(LAYERS, shape.num_heads, shape.num_kv_heads, shape.head_dim, 16, shape.scale)
    figures = {}
    for requests, shared in ((16, 1024), (64, 1024), (64, 4096)):
        case = Case(f"decode {requests}, {shared} shared", ((shared + 100, 1),) * requests, shared=shared)
        times = figures[case.name] = cascade_seconds(layers, device, case)
        print(f"{case.name:28} on {times['on'] * 1e6:8.1f} µs, off {times['off'] * 1e6:8.1f} µs a layer")
    return figures


def engine(config: ModelConfig, device: torch.device, backend: str, tiny: bool) -> dict[str, Any]:
    """Decode steps with and without graphs, then the workloads."""
    made = make_engine(config, device, backend, 1 << 14 if tiny else 1 << 18)
    graphs = made.runner.graphs
    figures: dict[str, Any] = {}
    for requests in (1, 4) if tiny else (1, 8, 64):
        ways = {"graph": graphs, "eager": None} if graphs is not None else {"eager": None}
        for way, used in ways.items():
            made.runner.graphs = used
            took = decode_seconds(made, requests, 32 if tiny else 512, 4 if tiny else 64)
            figures[f"decode step, {requests} requests, {way}"] = took
            print(f"decode step, {requests:3} requests, {way:6} {took * 1e3:8.2f} ms")
    made.runner.graphs = graphs
    for name in ("W1",) if tiny else ("W1", "W2", "W3"):
        made.flush_cache()
        run = throughput(made, name, seed=1, scale=1 if tiny else 4)
        figures[name] = vars(run)
        print(
            f"{name}: {run.output / run.seconds:9.0f} output tok/s, {run.prompt / run.seconds:9.0f} prompt tok/s, "
            f"{100 * run.cached / run.prompt:4.1f} % cached, {run.steps} steps, {run.seconds:.1f} s"
        )
    return figures


def main() -> None:
    """Runs every part and prints what it found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument(
        "--compile", action="store_true", help="only compile FlashInfer's kernels, side by side"
    )
    options = parser.parse_args()
    if options.compile:
        print(f"{compile_kernels()} modules of FlashInfer are compiled")
        return
    device = torch.device(options.device)
    tiny = device.type == "cpu"
    config, backend = (TINY, "torch") if tiny else (LLAMA_8B, "flashinfer")
    name = "CPU, tiny shape: a dry run" if tiny else torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}\n")
    figures: dict[str, Any] = {"device": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    with torch.inference_mode():
        figures["attention"] = attention(config, device, backend, tiny)
        print()
        if not tiny:
            figures["cascade"] = cascade(config, device)
            print()
    figures["engine"] = engine(config, device, backend, tiny)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
