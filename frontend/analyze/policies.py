"""The hits of any policy at any size: one `CompressedCache` for each, on all cores."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from .chains import Chains
from .compressed import CompressedCache
from .progress import Listener, Silent
from .trace import Trace
from .types import Int64Array

Job = tuple[str, int]  # policy, capacity in blocks

# Requests times jobs below which a second process costs more than it brings.
_WORTH_A_PROCESS = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Replayable:
    """What a replay needs of a trace, small enough to be sent to another process."""

    chains: Chains
    num_lookups: list[int]
    priorities: list[int]
    block_size: int

    @staticmethod
    def of(trace: Trace, chains: Chains) -> Replayable:
        none = np.zeros(0, np.int32)
        slim = Chains(chains.parent, chains.attach, chains.depth, none, none, chains.pieces)
        return Replayable(slim, trace.num_lookup_blocks.tolist(), trace.priority.tolist(), trace.block_size)

    def __len__(self) -> int:
        return len(self.num_lookups)

    def run(self, job: Job) -> Int64Array:
        """The blocks each request finds."""
        policy, capacity = job
        cache = CompressedCache(self.chains, policy, capacity, self.block_size)
        paths = zip(self.chains.pieces, self.num_lookups, self.priorities, strict=True)
        with _no_collection():
            hits = [cache.request(number, *path) for number, path in enumerate(paths)]
        return np.array(hits, dtype=np.int64)


@contextmanager
def _no_collection() -> Iterator[None]:
    """The replay makes many small objects and no cycles: looking for those costs a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class PolicyRuns:
    """Starts the jobs in other processes at once; `results` does the rest here and collects. A context manager."""

    def __init__(self, replayable: Replayable, jobs: Sequence[Job]) -> None:
        self._replayable = replayable
        self._jobs = list(jobs)
        self._workers: list[tuple[subprocess.Popen[bytes], list[int]]] = []

    def __enter__(self) -> PolicyRuns:
        shares = self._shares()
        self._own = shares[0]
        for share in shares[1:]:
            jobs = [self._jobs[index] for index in share]
            worker = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._workers.append((worker, share))
            assert worker.stdin is not None
            with suppress(BrokenPipeError):  # it has died already: `results` does its work
                pickle.dump((self._replayable, jobs), worker.stdin, protocol=pickle.HIGHEST_PROTOCOL)
                worker.stdin.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker, _ in self._workers:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()

    def results(self, progress: Listener | None = None) -> list[Int64Array]:
        """The hit blocks of each job, in the order of the jobs."""
        hear = (progress or Silent()).stage("replaying policies", len(self._own))
        found: dict[int, Int64Array] = {}
        for done, index in enumerate(self._own, start=1):
            found[index] = self._replayable.run(self._jobs[index])
            hear(done)
        for worker, share in self._workers:
            assert worker.stdout is not None
            answer = worker.stdout.read()
            if worker.wait() == 0:
                found.update(zip(share, pickle.loads(answer), strict=True))
            else:  # killed from outside, or out of memory: its work is done here
                found.update((index, self._replayable.run(self._jobs[index])) for index in share)
        return [found[index] for index in range(len(self._jobs))]

    def _shares(self) -> list[list[int]]:
        """Which jobs are done here (the first share) and by each worker: every n-th, so that costs even out."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        worth = len(self._replayable) * len(self._jobs) // _WORTH_A_PROCESS
        count = max(1, min(cores, worth, len(self._jobs)))
        return [list(range(share, len(self._jobs), count)) for share in range(count)]


def work() -> None:
    """The other process: jobs come on stdin, hits go to stdout."""
    replayable, jobs = pickle.load(sys.stdin.buffer)
    pickle.dump([replayable.run(job) for job in jobs], sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    work()
