"""Before anything imports torch: the tests and the servers that they start share the cores, so nobody spins."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))
