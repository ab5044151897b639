"""A pytest plugin: level amx is there, and is the library that EMULATED_AMX names (see test_emulated_amx.py)."""

import os
from pathlib import Path

from trunkline.attention import native

_file = native._file
native._file = lambda level: Path(os.environ["EMULATED_AMX"]) if level == "amx" else _file(level)
native.machine_levels = lambda: native.LEVELS
native.clear()
