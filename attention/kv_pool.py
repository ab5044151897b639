"""The memory that keys and values live in."""

import numpy as np
import numpy.typing as npt
import torch

from trunkline.errors import ConfigError

from .config import AttentionConfig
from .errors import PageCopyError

PagePairs = npt.NDArray[np.int32]


class KVPool:
    """Keys and values of every layer in pages 1..num_pages; page 0 is padding and belongs to nobody.

    `k[layer]` and `v[layer]` are [num_pages + 1, page_size, num_kv_heads, head_dim] (NHD) views of one
    block, `data`. The memory is not cleared: a slot means something only after `store` wrote it.
    """

    def __init__(
        self, config: AttentionConfig, num_pages: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        if num_pages < 1:
            raise ConfigError(f"KV pool: num_pages is {num_pages}; it must be at least 1")
        self.config = config
        self.num_pages = num_pages
        self.data = torch.empty(
            (2, config.num_layers, num_pages + 1, config.page_size, config.num_kv_heads, config.head_dim),
            dtype=dtype,
            device=device,
        )
        self.k: tuple[torch.Tensor, ...] = self.data[0].unbind()
        self.v: tuple[torch.Tensor, ...] = self.data[1].unbind()

    @staticmethod
    def page_bytes(config: AttentionConfig, dtype: torch.dtype) -> int:
        """Bytes that one page takes over all layers, keys and values."""
        return (
            2 * config.num_layers * config.page_size * config.num_kv_heads * config.head_dim * dtype.itemsize
        )

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.config.page_size

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the keys and values."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        """Where the pages lie."""
        return self.data.device

    def store(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Writes k, v [tokens, kv_heads, head_dim] to int64 `slots` [tokens], page · page_size + offset."""
        self.k[layer].flatten(0, 1).index_copy_(0, slots, k)
        self.v[layer].flatten(0, 1).index_copy_(0, slots, v)

    def copy_pages(self, pairs: PagePairs) -> None:
        """Copies pages (source, destination) [n, 2] in every layer; all are read before any is written.

        Raises PageCopyError for a page outside 1..num_pages or a destination that comes twice.
        """
        src, dst = check_pairs(pairs, self.num_pages, self.num_pages, self.device)
        self.data.index_copy_(2, dst, self.data.index_select(2, src))


class HostPool:
    """Pages 1..num_pages of a pool's shape in host memory, for requests that are swapped out.

    Page-locked when the pool it serves is on a CUDA device.
    """

    def __init__(self, pool: KVPool, num_pages: int) -> None:
        if num_pages < 1:
            raise ConfigError(f"host pool: num_pages is {num_pages}; it must be at least 1")
        self.pool = pool
        self.num_pages = num_pages
        shape = list(pool.data.shape)
        shape[2] = num_pages + 1
        self.data = torch.empty(shape, dtype=pool.dtype, pin_memory=pool.device.type == "cuda")

    def swap_out(self, pairs: PagePairs) -> None:
        """Copies pages (device page, host page) [n, 2] to host memory; raises PageCopyError."""
        src, dst = check_pairs(pairs, self.pool.num_pages, self.num_pages, torch.device("cpu"))
        pages = self.pool.data.index_select(2, src.to(self.pool.device))
        self.data.index_copy_(2, dst, pages.to(self.data.device))

    def swap_in(self, pairs: PagePairs) -> None:
        """Copies pages (host page, device page) [n, 2] back; raises PageCopyError."""
        src, dst = check_pairs(pairs, self.num_pages, self.pool.num_pages, torch.device("cpu"))
        pages = self.data.index_select(2, src)
        self.pool.data.index_copy_(2, dst.to(self.pool.device), pages.to(self.pool.device))


def check_pairs(
    pairs: PagePairs, num_sources: int, num_destinations: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Validates (source, destination) pairs [n, 2] and returns both columns as int64 tensors on `device`."""
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise PageCopyError(f"page copies have shape {pairs.shape}; expected [n, 2]")
    for what, pages, limit in (
        ("source", pairs[:, 0], num_sources),
        ("destination", pairs[:, 1], num_destinations),
    ):
        outside = pages[(pages < 1) | (pages > limit)]
        if len(outside):
            raise PageCopyError(f"{what} page {outside[0]} is not within 1..{limit}")
    destinations, counts = np.unique(pairs[:, 1], return_counts=True)
    if len(destinations) != len(pairs):
        raise PageCopyError(
            f"page {destinations[counts.argmax()]} is the destination of {counts.max()} copies"
        )
    columns = torch.from_numpy(pairs.astype(np.int64)).to(device)
    return columns[:, 0], columns[:, 1]
