"""What the operating system is told about large blocks of memory."""

import ctypes
import mmap
import sys

import torch

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14


def advise_huge_pages(data: torch.Tensor) -> None:
    """Asks Linux for large pages under a contiguous tensor in host memory; elsewhere does nothing.

    Takes effect where the memory is first written afterwards. KV pages lie scattered, so that with 4 KiB pages
    nearly each one costs a page walk, and in a virtual machine two.
    """
    begin = -(-data.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (data.data_ptr() + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and end > begin:
        # A kernel without large pages says no; the memory is as good as before.
        _madvise(begin, end, mmap.MADV_HUGEPAGE)


def populate(data: torch.Tensor) -> None:
    """Has Linux put memory behind a contiguous host tensor now, not at the first write; elsewhere does nothing.

    Values stay as they are. Memory that can't be had (an old kernel, a limit) is left to the first write.
    """
    begin = data.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    end = -(-(data.data_ptr() + data.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    if sys.platform == "linux":
        _madvise(begin, end, _POPULATE_WRITE)


def _madvise(begin: int, end: int, advice: int) -> None:
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
