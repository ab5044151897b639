"""When a prefix that the requests of a step share is read once for all of them."""

from dataclasses import dataclass

import numpy as np

from trunkline.attention.config import AttentionConfig
from trunkline.attention.metadata import AttentionMetadata


def shared_pages(step: AttentionMetadata) -> int:
    """Leading pages that all requests of a step have in common and in which none of them writes. O(requests · result)."""
    firsts = step.kv_indptr[:-1]
    if step.num_requests < 2 or (step.kv_indices[firsts] != step.kv_indices[0]).any():
        return 0
    limit = int((step.kv_lens - step.q_lens).min()) // step.page_size
    num_pages = 0
    while num_pages < limit:
        # Galloping: shared prefixes are long or nothing.
        reach = min(limit, max(8, 2 * num_pages))
        columns = step.kv_indices[firsts[:, None] + np.arange(num_pages, reach)]
        differs = (columns != columns[0]).any(axis=0)
        if differs.any():
            return num_pages + int(differs.argmax())
        num_pages = reach
    return num_pages


@dataclass(frozen=True, slots=True)
class CascadeRule:
    """Cascade attention pays when the key bytes it saves exceed what the merge moves and its launches cost.

    `launch_bytes`: what the device could have read in the time of two more kernels a layer, a prefix's attention and
    the merge: 8 MiB are about 3 µs of an H200's bandwidth. After "cascade inference" (FlashInfer, 2024).
    """

    launch_bytes: int = 8 << 20

    def pays(
        self, config: AttentionConfig, itemsize: int, num_requests: int, num_tokens: int, shared: int
    ) -> bool:
        """For one layer of a step of num_requests requests whose first `shared` tokens are the same pages."""
        saved = (num_requests - 1) * shared * 2 * config.num_kv_heads * config.head_dim * itemsize
        # Two partial results are written, read and merged into a third, each with a float32 for its sum.
        merged = num_tokens * config.num_heads * (5 * config.head_dim * itemsize + 4 * 4)
        return saved > merged + self.launch_bytes

    def pages(self, config: AttentionConfig, itemsize: int, step: AttentionMetadata) -> int:
        """Leading pages of a step to be read once, 0 where that does not pay."""
        if step.mask is not None:
            return 0
        num_pages = shared_pages(step)
        shared = num_pages * step.page_size
        return num_pages if self.pays(config, itemsize, step.num_requests, step.num_tokens, shared) else 0
