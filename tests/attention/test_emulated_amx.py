"""The kernels of level amx on CPUs that have no tiles: compiled with tiles in memory (amx_emulation.h)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attention.native_levels import LEVELS

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = (
    *("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno"),
    *(
        "-mavx2",
        "-mfma",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512vnni",
        "-mavx512bf16",
    ),
    *(
        "-mamx-tile",
        "-mamx-bf16",
        "-mamx-int8",
    ),  # for what the compiler defines: no instruction of theirs is left
)
MODULES = (
    *("test_native.py", "test_native_backend.py", "test_native_int8_pages.py"),
    *("test_packed_linear.py", "test_native_int8_linear.py", "test_native_block_linear.py"),
)


@pytest.mark.skipif("amx" in LEVELS, reason="this machine has tiles: the tests above run them")
@pytest.mark.skipif("avx512_bf16" not in LEVELS, reason="the emulation takes AVX-512 and its bf16")
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_what_holds_at_every_level_holds_with_tiles(tmp_path: Path) -> None:
    library = tmp_path / "amx.so"
    header, source = ROOT / "tests/attention/amx_emulation.h", ROOT / "attention/csrc/level_amx.cpp"
    subprocess.run(
        [str(COMPILER), *FLAGS, "-include", str(header), str(source), "-o", str(library)],
        check=True,
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.attention.emulated_amx",
        "-p",
        "no:cacheprovider",
    ]
    ran = subprocess.run(
        [*command, "-k", "amx", *(f"tests/attention/{name}" for name in MODULES)],
        cwd=ROOT,
        env=os.environ | {"EMULATED_AMX": str(library)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "skipped" not in ran.stdout
