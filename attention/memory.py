"""What the operating system is told about large blocks of memory."""

import ctypes
import mmap
import sys

import torch


def advise_huge_pages(data: torch.Tensor) -> None:
    """Asks Linux for large pages under a contiguous tensor in host memory; elsewhere does nothing.

    Takes effect where the memory is first written afterwards. KV pages lie scattered, so that with 4 KiB pages
    nearly each one costs a page walk, and in a virtual machine two.
    """
    if sys.platform != "linux":
        return
    begin = -(-data.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (data.data_ptr() + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        # A kernel without large pages says no; the memory is as good as before.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_HUGEPAGE)
