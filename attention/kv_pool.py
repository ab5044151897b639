"""The memory that keys and values live in."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from trunkline.errors import ConfigError

from .config import AttentionConfig
from .errors import PageCopyError
from .streams import Event, Streams, streams_of, to_device

PagePairs = npt.NDArray[np.int32]
PageColumn = npt.NDArray[np.int32]


class KVPool:
    """Keys and values of every layer in pages 1..num_pages; page 0 is padding and belongs to nobody.

    `k[layer]` and `v[layer]` are [num_pages + 1, page_size, num_kv_heads, head_dim] (NHD) views of one
    block, `data`. The memory is not cleared: a slot means something only after `store` wrote it.

    Rows of int8 are multiples of a scale each, which `k_scales` and `v_scales` have: float32 views
    [num_pages + 1, num_kv_heads, page_size] of the same block. Backends write them; `store` does not.
    """

    def __init__(
        self, config: AttentionConfig, num_pages: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        if num_pages < 1:
            raise ConfigError(f"KV pool: num_pages is {num_pages}; it must be at least 1")
        self.config = config
        self.num_pages = num_pages
        shape = (config.page_size, config.num_kv_heads, config.head_dim)
        num_bytes, self.rows_bytes = _page_bytes(config, dtype)
        blocks = (2, config.num_layers, num_pages + 1)
        self.k_scales: tuple[torch.Tensor, ...] = ()
        self.v_scales: tuple[torch.Tensor, ...] = ()
        if dtype == torch.int8:
            self.data = torch.empty((*blocks, num_bytes), dtype=dtype, device=device)
            rows = self.data[..., : math.prod(shape)].view(*blocks, *shape)
            scales = self.data[..., self.rows_bytes :].view(torch.float32).view(*blocks, shape[1], shape[0])
            self.k_scales, self.v_scales = scales[0].unbind(), scales[1].unbind()
        else:
            rows = self.data = torch.empty((*blocks, *shape), dtype=dtype, device=device)
        self.k: tuple[torch.Tensor, ...] = rows[0].unbind()
        self.v: tuple[torch.Tensor, ...] = rows[1].unbind()
        self._arrivals: dict[int, Event] = {}

    @staticmethod
    def page_bytes(config: AttentionConfig, dtype: torch.dtype) -> int:
        """Bytes that one page takes over all layers, keys and values."""
        return 2 * config.num_layers * _page_bytes(config, dtype)[0]

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
        self.await_layers()
        self.data.index_copy_(2, dst, self.data.index_select(2, src))

    def expect_layer(self, layer: int, arrival: Event) -> None:
        """Pages of a layer are on their way; who reads or writes the layer calls `await_layer` first."""
        self._arrivals[layer] = arrival

    def await_layer(self, layer: int) -> None:
        """Lets the current stream wait for the pages of one layer, where any are on their way."""
        if self._arrivals and (arrival := self._arrivals.pop(layer, None)) is not None:
            arrival.wait()

    def await_layers(self) -> None:
        """`await_layer` for every layer."""
        for layer in list(self._arrivals):
            self.await_layer(layer)


def _page_bytes(config: AttentionConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of a layer's keys or values in one page: all, and its rows up to where scales begin (whole floats)."""
    rows = config.page_size * config.num_kv_heads
    num_bytes = rows * config.head_dim * dtype.itemsize
    if dtype != torch.int8:
        return num_bytes, num_bytes
    aligned = -(-num_bytes // 4) * 4
    return aligned + 4 * rows, aligned


class HostPool:
    """Pages 1..num_pages of a pool's shape in host memory, for requests that are swapped out.

    Beside a pool on a CUDA device the pages are page-locked and copies run on a side stream, layer by layer: a step's
    first layer begins when its own pages are there, while those of the later layers still come. On a CPU
    a copy is done when the call returns.
    """

    def __init__(self, pool: KVPool, num_pages: int, streams: Streams | None = None) -> None:
        if num_pages < 1:
            raise ConfigError(f"host pool: num_pages is {num_pages}; it must be at least 1")
        self.pool = pool
        self.num_pages = num_pages
        self.is_asynchronous = pool.device.type == "cuda"
        self._streams = streams or streams_of(pool.device)
        shape = list(pool.data.shape)
        shape[2] = num_pages + 1
        self.data = torch.empty(shape, dtype=pool.dtype, pin_memory=self.is_asynchronous)

    def swap_out(self, pairs: PagePairs) -> None:
        """Copies pages (device page, host page) [n, 2] to host memory; raises PageCopyError.

        What the current stream is given afterwards may write the device pages: it waits until they are gathered,
        not until they have reached the host.
        """
        check_pairs(pairs, self.pool.num_pages, self.num_pages, torch.device("cpu"))
        host_pages, device_pages = _sorted_columns(pairs[:, 1], pairs[:, 0])
        gathered = self._streams.event()
        with self._streams.side():
            pages = self.pool.data.index_select(2, to_device(device_pages.astype(np.int64), self.pool.device))
            gathered.record()
            for layer in range(self.pool.config.num_layers):
                for host, device in self._blocks(layer, host_pages, pages[:, layer]):
                    host.copy_(device, non_blocking=True)
        gathered.wait()

    def swap_in(self, pairs: PagePairs) -> None:
        """Copies pages (host page, device page) [n, 2] back; raises PageCopyError.

        The pool expects each layer from then on: `KVPool.await_layer` before the layer is touched.
        """
        check_pairs(pairs, self.num_pages, self.pool.num_pages, torch.device("cpu"))
        host_pages, device_pages = _sorted_columns(pairs[:, 0], pairs[:, 1])
        with self._streams.side():
            destinations = to_device(device_pages.astype(np.int64), self.pool.device)
            pages = self.pool.data.new_empty(2, len(pairs), *self.pool.data.shape[3:])
            for layer in range(self.pool.config.num_layers):
                for host, device in self._blocks(layer, host_pages, pages):
                    device.copy_(host, non_blocking=True)
                self.pool.data[:, layer].index_copy_(1, destinations, pages)
                arrival = self._streams.event()
                arrival.record()
                self.pool.expect_layer(layer, arrival)

    def _blocks(
        self, layer: int, host_pages: PageColumn, pages: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs of equal blocks, each in one piece: of this pool's `host_pages` and of `pages` [2, n, ...]."""
        for first, last in _runs(host_pages):
            host_page = int(host_pages[first])
            for part in (0, 1):
                yield self.data[part, layer, host_page : host_page + last - first], pages[part, first:last]


def _sorted_columns(keys: PageColumn, others: PageColumn) -> tuple[PageColumn, PageColumn]:
    order = np.argsort(keys, kind="stable")
    return keys[order], others[order]


def _runs(pages: PageColumn) -> Iterator[tuple[int, int]]:
    """(first row, one past the last row) of pages that ascend by one."""
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    return pairwise([0, *cuts.tolist(), len(pages)] if len(pages) else [])


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
    columns = to_device(pairs.astype(np.int64), device)
    return columns[:, 0], columns[:, 1]
