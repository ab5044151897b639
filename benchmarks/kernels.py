"""The native CPU kernels next to torch's, and next to what memory and arithmetic units would allow.

    python -m benchmarks.kernels [--threads N] [--quick]

Shapes are SmolLM2-135M's in bfloat16. Each row is one layer; the layers of a model take turns, so that
keys come from memory as they do in a real step. Times are medians of interleaved rounds in ms; floors use
the read bandwidth and the matrix rate that the same run measures.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from torch.nn import functional as F

from trunkline.attention import AttentionConfig, AttentionMetadata, KVPool, fused, make_backend, native
from trunkline.attention.block_linear import BlockLinear
from trunkline.attention.cpu import CpuBackend
from trunkline.attention.int8_linear import Int8Linear
from trunkline.attention.memory import advise_huge_pages
from trunkline.attention.packed_linear import PackedLinear

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE, LAYERS, PAGE = 9, 3, 64, 576, 1536, 8, 16
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """Requests (tokens in the pool, new tokens), the first `shared` tokens of which are the same pages."""

    name: str
    requests: tuple[tuple[int, int], ...]
    shared: int = 0

    def metadata(self, num_pages: int) -> AttentionMetadata:
        """Shuffled page tables."""
        rng = np.random.default_rng(0)
        pages = iter(rng.permutation(np.arange(1, num_pages + 1)).astype(np.int32).tolist())
        trunk = [next(pages) for _ in range(self.shared // PAGE)]
        tables = []
        for start, length in self.requests:
            own = -(-(start + length) // PAGE) - len(trunk)
            tables.append(np.array([*trunk, *(next(pages) for _ in range(own))], np.int32))
        starts, lengths = zip(*self.requests, strict=True)
        return AttentionMetadata.build(starts, lengths, tables, PAGE)

    @property
    def bytes(self) -> float:
        """Keys and values that have to be read, shared ones once."""
        keys = sum(start + length - self.shared for start, length in self.requests) + self.shared
        return keys * 2.0 * KV_HEADS * HEAD_DIM * DTYPE.itemsize

    @property
    def flops(self) -> float:
        """Of both matrix products, visible keys only."""
        pairs = sum(length * start + length * (length + 1) / 2 for start, length in self.requests)
        return pairs * 4.0 * HEADS * HEAD_DIM


CASES = (
    Case("decode 16 x 1,000", ((1000, 1),) * 16),
    Case("decode 64, 992 shared", ((1030, 1),) * 64, shared=992),
    Case("decode 1 x 1,000", ((1000, 1),)),
    Case("prefill 512 on 1,000", ((1000, 512),)),
    Case("prefill 16 x 30 on shared 992", ((992, 30),) * 16, shared=992),
)


def medians(ways: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, float]:
    """Milliseconds a call of each way: medians over rounds in which all ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(calls):
                way()
            if round_:  # the first warms up
                times[name].append((time.perf_counter() - begin) / calls * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def machine_limits(rounds: int) -> tuple[float, float]:
    """Bytes a second that torch reads from memory, and FLOP a second of a large product, in bf16 or float32."""
    data = torch.empty(64 << 20)
    advise_huge_pages(data)
    data.fill_(1.0)
    a, b = torch.randn(2, 1024, 1024)
    low_a, low_b = a.to(DTYPE), b.to(DTYPE)
    times = medians({"read": data.sum, "bf16": lambda: low_a @ low_b, "float32": lambda: a @ b}, rounds, 1)
    product = min(times["bf16"], times["float32"])
    return data.nbytes / times["read"] * 1e3, 2 * 1024**3 / product * 1e3


def attention(case: Case, levels: list[str], rounds: int) -> dict[str, float]:
    """Milliseconds a layer of torch's backend and of the native one at each level."""
    num_pages = 64 * 66
    config = AttentionConfig(LAYERS, HEADS, KV_HEADS, HEAD_DIM, PAGE, HEAD_DIM**-0.5)
    pool = KVPool(config, num_pages, DTYPE)
    metadata = case.metadata(num_pages)
    q = torch.randn(metadata.num_tokens, HEADS, HEAD_DIM).to(DTYPE)
    k, v = torch.randn(2, metadata.num_tokens, KV_HEADS, HEAD_DIM).to(DTYPE)
    backends = {"torch": make_backend("torch", config, pool)}
    backends |= {level: CpuBackend(config, pool, level) for level in levels}
    pool.data.fill_(0.5)  # after the cpu backend has asked for large pages under it
    for backend in backends.values():
        backend.plan(metadata)

    def all_layers(name: str) -> Callable[[], object]:
        return lambda: [backends[name].forward(layer, q, k, v) for layer in range(LAYERS)]

    times = medians({name: all_layers(name) for name in backends}, rounds, 1)
    return {name: value / LAYERS for name, value in times.items()}


def pointwise(rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the fused steps and of torch's, for `rows` tokens."""
    x, residual = torch.randn(2, rows, HIDDEN).to(DTYPE)
    weight, gate_up = torch.ones(HIDDEN, dtype=DTYPE), torch.randn(rows, 2 * INTERMEDIATE).to(DTYPE)

    def torch_norm() -> torch.Tensor:
        residual.add_(x)
        return F.rms_norm(residual, (HIDDEN,), weight, 1e-5)

    def torch_silu() -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    norm = {"torch": torch_norm, "native": lambda: fused.add_rms_norm(x, residual, weight, 1e-5)}
    silu = {"torch": torch_silu, "native": lambda: fused.silu_mul(gate_up)}
    return {
        f"add + RMSNorm, {rows} rows": medians(norm, rounds, 50),
        f"SiLU * up, {rows} rows": medians(silu, rounds, 50),
    }


def linears(rows: int, rounds: int) -> dict[str, float]:
    """Milliseconds of the largest linear layer in each form, for `rows` tokens; copies take turns, from memory."""
    outputs, copies = 2 * INTERMEDIATE, 24
    x, weight = torch.randn(rows, HIDDEN).to(DTYPE), torch.randn(outputs, HIDDEN).to(DTYPE)
    forms: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
        "bf16": lambda: PackedLinear(weight),
        "int8": lambda: Int8Linear(weight),
    }
    for kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0):
        stored = torch.from_numpy(quantize(weight.float().numpy(), kind))
        forms[kind.name] = partial(BlockLinear, kind.name, stored)
    if has_one_dnn():
        forms = {"oneDNN": lambda: one_dnn(weight), **forms}
    layers = {name: [make() for _ in range(copies)] for name, make in forms.items()}

    def all_copies(name: str) -> Callable[[], object]:
        return lambda: [layer(x) for layer in layers[name]]

    times = medians({name: all_copies(name) for name in layers}, rounds, 1)
    return {name: value / copies for name, value in times.items()}


def has_one_dnn() -> bool:
    """Whether torch has a packed product for this CPU; it needs instructions for bf16, or AVX-512."""
    try:
        one_dnn(torch.zeros(16, 16, dtype=DTYPE))
    except (AttributeError, RuntimeError):
        return False
    return True


def one_dnn(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """torch's product with a packed weight."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="few rounds, the best level only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds = 2 if arguments.quick else 5
    levels = [native.library().level] if arguments.quick else list(native.machine_levels())
    bandwidth, rate = machine_limits(rounds)
    print(
        f"{arguments.threads} threads: {bandwidth / 1e9:.1f} GB/s read, {rate / 1e9:.0f} GFLOP/s in a product"
    )
    with torch.inference_mode():
        for case in CASES:
            times = attention(case, levels, rounds)
            floor = max(case.bytes / bandwidth, case.flops / rate) * 1e3
            print(f"\n{case.name}: floor {floor:.3f} ms")
            for name, value in times.items():
                ratio, above = times["torch"] / value, value / floor
                print(
                    f"  {name:12} {value:8.3f} ms   {ratio:6.2f} x torch's speed   {above:6.2f} x the floor"
                )
        for rows in (1, 16, 512):
            for what, times in pointwise(rows, rounds).items():
                print(f"\n{what}: torch {times['torch'] * 1e3:.1f} µs, native {times['native'] * 1e3:.1f} µs")
        for rows in (1, 16, 512):
            found = ", ".join(f"{name} {time * 1e3:.0f} µs" for name, time in linears(rows, rounds).items())
            print(f"\ngate_up, {rows} rows: {found}")


if __name__ == "__main__":
    main()
