"""Memory is put behind a tensor without changing it, or not at all."""

import mmap

import pytest
import torch

from tests.attention.resident import needs_populate, resident_bytes
from trunkline.attention.memory import populate

SIZE = 64 * mmap.PAGESIZE


def mapped(access: int = mmap.PROT_READ | mmap.PROT_WRITE) -> torch.Tensor:
    """Bytes that nobody has touched."""
    return torch.frombuffer(mmap.mmap(-1, SIZE, prot=access), dtype=torch.uint8)


@needs_populate
def test_a_part_gets_its_memory_and_the_rest_none() -> None:
    data = mapped()
    populate(data[SIZE // 2 + 10 : -10])
    assert resident_bytes(data[: SIZE // 2]) == 0
    assert resident_bytes(data[SIZE // 2 :]) == SIZE // 2


def test_what_is_written_stays() -> None:
    data = mapped()
    data[::1000] = 7
    before = data.clone()
    populate(data[100:])
    assert torch.equal(data, before)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_memory_that_can_not_be_had_is_left_alone() -> None:
    data = mapped(mmap.PROT_READ)
    populate(data)
    assert not data.any()
