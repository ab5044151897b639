"""The index arrays of one attention call, and how a step is padded or cut in two."""

from dataclasses import dataclass

import numpy as np

from trunkline.attention.metadata import AttentionMetadata, Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Queries of b requests and the pages that each of them attends to, int32, as in AttentionMetadata."""

    page_size: int
    qo_indptr: Int32Array
    kv_indptr: Int32Array
    kv_indices: Int32Array
    last_page_len: Int32Array

    @property
    def num_requests(self) -> int:
        """Requests."""
        return len(self.last_page_len)

    @property
    def num_tokens(self) -> int:
        """Queries of all requests together."""
        return int(self.qo_indptr[-1])

    @property
    def kv_lens(self) -> Int32Array:
        """Keys of each request, int32 [b]."""
        return (np.diff(self.kv_indptr) - 1) * np.int32(self.page_size) + self.last_page_len

    @property
    def max_q_len(self) -> int:
        """Queries of the longest request."""
        return int(np.diff(self.qo_indptr).max())

    @classmethod
    def of(cls, step: AttentionMetadata) -> "Problem":
        """All of a step."""
        return cls(step.page_size, step.qo_indptr, step.kv_indptr, step.kv_indices, step.kv_last_page_len)


def padded(problem: Problem, num_rows: int) -> Problem:
    """Decodes filled up to num_rows requests; those added attend to the first slot of page 0, which is nobody's."""
    missing = num_rows - problem.num_requests
    return Problem(
        problem.page_size,
        np.arange(num_rows + 1, dtype=np.int32),
        _extended(problem.kv_indptr, problem.kv_indptr[-1] + np.arange(1, missing + 1)),
        _extended(problem.kv_indices, np.zeros(missing)),
        _extended(problem.last_page_len, np.ones(missing)),
    )


def cut(problem: Problem, num_pages: int) -> tuple[Problem, Problem]:
    """The first num_pages pages, which all requests share, as one request of all queries; and what is left of each.

    Every new token comes after the shared pages, so that it sees all of them; the rest stays causal.
    """
    prefix = Problem(
        problem.page_size,
        np.array([0, problem.num_tokens], np.int32),
        np.array([0, num_pages], np.int32),
        problem.kv_indices[:num_pages],
        np.array([problem.page_size], np.int32),
    )
    column = np.arange(len(problem.kv_indices)) - np.repeat(
        problem.kv_indptr[:-1], np.diff(problem.kv_indptr)
    )
    rest = Problem(
        problem.page_size,
        problem.qo_indptr,
        problem.kv_indptr - num_pages * np.arange(len(problem.kv_indptr), dtype=np.int32),
        problem.kv_indices[column >= num_pages],
        problem.last_page_len,
    )
    return prefix, rest


def _extended(array: Int32Array, more: np.ndarray) -> Int32Array:
    return np.concatenate([array, more.astype(np.int32)])
