"""What of a tensor has memory behind it, as Linux counts it."""

import ctypes
import gc
import mmap
import sys

import pytest
import torch

LIBC = ctypes.CDLL(None)
MADV_POPULATE_WRITE = 23


def kernel_populates() -> bool:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return (
            LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), MADV_POPULATE_WRITE) == 0
        )


needs_populate = pytest.mark.skipif(
    sys.platform != "linux" or not kernel_populates(), reason="needs Linux 5.14 or later"
)


def give_back_freed_memory() -> None:
    """What earlier tests have freed has no memory behind it any more, should malloc hand it out again."""
    gc.collect()
    LIBC.malloc_trim(ctypes.c_size_t(0))


def resident_bytes(data: torch.Tensor) -> int:
    """Of the pages of memory that a contiguous tensor touches, those that are there."""
    begin = data.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = data.data_ptr() + data.nbytes - begin
    present = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert LIBC.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), present) == 0
    return sum(flag & 1 for flag in present) * mmap.PAGESIZE
