"""Packs what a GPU machine without a package index needs to test and measure Trunkline, into one archive under 60 MiB.

    python -m benchmarks.pack_gpu gpu.tar.gz             # for Python 3.12 on x86-64 Linux
    # on the GPU machine, which has Python, torch, transformers and the CUDA compiler:
    tar xzf gpu.tar.gz && ./trunkline-gpu/run            # tests, then the benchmark

The archive holds this checkout, flashinfer-python, and wheels of what else is often missing. `run` unpacks the wheels
beside it and installs nothing; it ends each part before ten minutes are over and leaves tests.txt and figures.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MIB = 60
# The smallest version of those we admit: later ones carry sources of kernels that we do not use.
FLASHINFER = "flashinfer-python==0.6.13"
WHEELS = (
    FLASHINFER,
    "apache-tvm-ffi>=0.1.11,<0.2",
    "nvidia-ml-py",
    "einops",
    "tabulate",
    "gguf",
    "greenlet",
    "llguidance",
    "msgspec",
    "psutil",
    "pytest",
    "pytest-timeout",
    "pluggy",
    "iniconfig",
    "sortedcontainers",
    "typer",
    "rich",
    "xxhash",
)
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
RUN = """#!/usr/bin/env bash
# Compiles the kernels, runs the tests marked gpu, then the benchmark: each within its share of ten minutes.
set -uo pipefail
cd "$(dirname "$0")"
here=$PWD
[ -d site ] || for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" site || exit 1; done
# The archive comes before what the machine has of its own.
export PYTHONPATH="$here/src:$here/site" PYTHONDONTWRITEBYTECODE=1
export FLASHINFER_WORKSPACE_BASE="${FLASHINFER_WORKSPACE_BASE:-$here/cache}" MAX_JOBS="${MAX_JOBS:-$(nproc)}"
cd src/trunkline
timeout "${COMPILE_SECONDS:-240}" python3 -m benchmarks.gpu --compile
timeout "${TEST_SECONDS:-150}" python3 -m pytest -m gpu -p no:cacheprovider tests/attention tests/runtime/test_gpu.py \\
  -k "(bfloat16 and dense_attention) or graph or cascade or swapped or fused_kernels or test_gpu" 2>&1 \\
  | tee "$here/tests.txt"
tests=$?
timeout "${BENCHMARK_SECONDS:-200}" python3 -m benchmarks.gpu --json "$here/figures.json" "$@"
measured=$?
exit $((tests || measured))
"""


def tracked_files() -> list[Path]:
    """What git knows of, and nothing that was built."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    skipped = ("examples/", "docs/", "benchmarks/data/", "tests/data/")
    names = [name for name in listed.decode().split("\0") if name and not name.startswith(skipped)]
    return [Path(name) for name in names]


def fetch_wheels(folder: Path, python: str) -> None:
    """Downloads the wheels for another Python than this one may be."""
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    target = ["--python-version", python, "--implementation", "cp", *platforms, "--dest", str(folder)]
    subprocess.run([*command, *target, *WHEELS], check=True)


def pack(archive: Path, python: str) -> float:
    """Writes the archive and returns its size in MiB."""
    with tempfile.TemporaryDirectory() as scratch:
        wheels = Path(scratch) / "wheels"
        fetch_wheels(wheels, python)
        run = Path(scratch) / "run"
        run.write_text(RUN, encoding="utf-8")
        run.chmod(0o755)
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(run, "trunkline-gpu/run")
            tar.add(wheels, "trunkline-gpu/wheels")
            for name in tracked_files():
                tar.add(ROOT / name, f"trunkline-gpu/src/trunkline/{name}")
    return archive.stat().st_size / (1 << 20)


def main() -> None:
    """Packs, and fails where the archive grew too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("--python", default="3.12", help="the GPU machine's version")
    options = parser.parse_args()
    size = pack(options.archive, options.python)
    print(f"{options.archive}: {size:.1f} MiB")
    if size > LIMIT_MIB:
        sys.exit(f"more than {LIMIT_MIB} MiB")


if __name__ == "__main__":
    main()
