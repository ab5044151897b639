"""The native kernels: one optional library per instruction set, from the same sources. Needs a C++17 compiler.

Without a compiler, or with one that lacks an instruction set, installation goes on without the libraries
concerned; `trunkline.attention.native` says what is missing and torch does the work.
"""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
VNNI = "-mavx512vnni"
LEVELS = {
    "plain": [],
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_vnni": [*AVX512, VNNI],
    "avx512_bf16": [*AVX512, VNNI, "-mavx512bf16"],
    "amx": [*AVX512, VNNI, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
}
# -fopenmp for the compiler only: at run time the symbols come from the OpenMP runtime that torch has loaded.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fopenmp",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
]
QUIET = ["-Wno-psabi", "-Wno-ignored-attributes", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]


class BuildNative(build_ext):
    """Compiles the levels side by side."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = True


def extensions() -> list[Extension]:
    """One extension per level that makes sense on this machine's architecture."""
    if sys.platform != "linux":
        return []
    levels = LEVELS if platform.machine() == "x86_64" else ["plain"]
    csrc = Path("attention/csrc")
    sources = sorted(str(path) for pattern in ("*.h", "*.cpp") for path in csrc.glob(pattern))
    return [
        Extension(
            f"trunkline.attention._native_{level}",
            [f"attention/csrc/level_{level}.cpp"],
            depends=sources,
            extra_compile_args=[*FLAGS, *QUIET, *LEVELS[level]],
            language="c++",
            optional=True,
        )
        for level in levels
    ]


if __name__ == "__main__":  # a test compiles a level with the flags above
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative})
