"""A pytest plugin: the levels of EMULATED_LEVELS, a folder, are there, and no others (see test_emulated_levels.py)."""

import os
from pathlib import Path

from trunkline.attention import native

FOLDER = Path(os.environ["EMULATED_LEVELS"])

native._file = lambda level: FOLDER / f"{level}.so"
native.machine_levels = lambda: tuple(level for level in native.LEVELS if native._file(level).exists())
native.clear()
