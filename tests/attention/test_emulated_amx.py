"""The kernels of level amx on CPUs that have no tiles: compiled with tiles in memory (amx_emulation.h).

Tests of every level and of whole models run once more, in a process that takes these kernels for the real ones.
"""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attention.native_levels import LEVELS
from trunkline.attention import native

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = [
    pytest.mark.skipif("amx" in LEVELS, reason="this machine has tiles, which are tested as they are"),
    pytest.mark.skipif("avx512_bf16" not in LEVELS, reason="the emulation takes AVX-512 and its bf16"),
    pytest.mark.skipif(COMPILER is None or native._file("amx") is None, reason="no compiler that knows AMX"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("emulated") / "amx.so"
    header, source = ROOT / "tests/attention/amx_emulation.h", ROOT / "attention/csrc/level_amx.cpp"
    setup = runpy.run_path(str(ROOT / "setup.py"))
    # The flags of AMX define what the sources ask for; none of its instructions is left.
    flags = [*setup["FLAGS"], *setup["LEVELS"]["amx"], "-O1", "-w", "-shared", "-fPIC"]
    subprocess.run(
        [str(COMPILER), *flags, "-include", str(header), str(source), "-o", str(built)], check=True
    )
    return built


def run(library: Path, *arguments: str, **environment: str) -> None:
    """Runs pytest with these arguments, and level amx from this file."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.attention.emulated_amx",
    ]
    ran = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | {"EMULATED_AMX": str(library)} | environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


def test_what_holds_at_every_level_holds_with_tiles(library: Path) -> None:
    names = (
        "native",
        "native_backend",
        "native_int8_pages",
        "packed_linear",
        "native_int8_linear",
        "native_block_linear",
    )
    run(library, "-k", "amx", *(f"tests/attention/test_{name}.py" for name in names))


def test_whole_models_compute_with_tiles(library: Path) -> None:
    names = ("native_decoder", "int8_kv", "int8_model", "gguf_blocks")
    run(library, *(f"tests/runtime/test_{name}.py" for name in names), TRUNKLINE_CPU_LEVEL="amx")
