"""The kernels of levels that this machine lacks: compiled for AVX2, with their instructions in its terms.

Tests of every level and of whole models run once more, in a process that takes these kernels for the real ones.
`avx512_vnni` is left out: it has the bytes of `avx512_bf16` and the floats of `avx512`.
"""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attention.native_levels import LEVELS

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++")
EMULATED = [level for level in ("avx512", "avx512_bf16", "amx") if level not in LEVELS]
pytestmark = [
    pytest.mark.skipif(not EMULATED, reason="this machine has every level, which are tested as they are"),
    pytest.mark.skipif("avx2" not in LEVELS, reason="the emulation takes AVX2"),
    pytest.mark.skipif(COMPILER is None, reason="no compiler"),
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of them, one per level."""
    folder = tmp_path_factory.mktemp("emulated")
    setup = runpy.run_path(str(ROOT / "setup.py"))
    flags = [*setup["FLAGS"], *setup["LEVELS"]["avx2"], *setup["QUIET"], "-O1", "-shared", "-fPIC"]
    headers = [f'#include "{ROOT}/tests/attention/{name}_emulation.h"' for name in ("avx512", "amx")]
    compilers = []
    for level in EMULATED:
        new = [flag for flag in setup["LEVELS"][level] if flag not in setup["LEVELS"]["avx2"]]
        # What these flags would define is what the sources ask for.
        macros = [f"#define __{flag.removeprefix('-m').replace('-', '_').upper()}__ 1" for flag in new]
        source = folder / f"{level}.cpp"
        kernels = f'#include "{ROOT}/attention/csrc/level_{level}.cpp"'
        source.write_text("\n".join([*headers, *macros, kernels]) + "\n")
        command = [str(COMPILER), *flags, str(source), "-o", str(folder / f"{level}.so")]
        compilers.append(subprocess.Popen(command))
    assert [compiler.wait() for compiler in compilers] == [0] * len(EMULATED)
    return folder


def run(libraries: Path, *arguments: str, **environment: str) -> None:
    """Runs pytest with these arguments, and the levels of `libraries`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.attention.emulated_levels",
    ]
    ran = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | {"EMULATED_LEVELS": str(libraries)} | environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


def test_what_holds_at_every_level_holds_at_those_emulated(libraries: Path) -> None:
    names = (
        "native",
        "native_backend",
        "native_int8_pages",
        "packed_linear",
        "native_int8_linear",
        "native_block_linear",
    )
    run(libraries, "-k", " or ".join(EMULATED), *(f"tests/attention/test_{name}.py" for name in names))


def test_whole_models_compute_at_the_highest_of_them(libraries: Path) -> None:
    names = ("native_decoder", "int8_kv", "int8_model")
    blocks = "test_gguf_blocks.py::test_the_native_pass_gives_what_the_layers_give_one_by_one"
    files = [*(f"tests/runtime/test_{name}.py" for name in names), f"tests/runtime/{blocks}"]
    run(libraries, *files, TRUNKLINE_CPU_LEVEL=EMULATED[-1])
