"""Parameters for tests that run at every level of the native kernels that this machine has."""

import pytest

from trunkline.attention import native

LEVELS = native.machine_levels() if native.unavailable() is None else ()

needs_native = pytest.mark.skipif(not LEVELS, reason=str(native.unavailable()))
at_every_level = pytest.mark.parametrize("level", LEVELS or ["none"])
