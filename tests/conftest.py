"""Before anything imports torch: the tests and the servers that they start share the cores, so nobody spins."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
