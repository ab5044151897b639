import numpy as np
import pytest

from trunkline.attention import AttentionMetadata, MetadataError


def pages(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_a_step_is_laid_out_in_csr_form() -> None:
    step = AttentionMetadata.build(
        starts=[3, 0, 7],
        lengths=[3, 4, 1],
        page_tables=[pages(7, 2), pages(5, 1, 9), pages(7, 4)],
        page_size=4,
    )

    assert step.qo_indptr.tolist() == [0, 3, 7, 8]
    assert step.kv_indptr.tolist() == [0, 2, 3, 5]
    assert step.kv_indices.tolist() == [7, 2, 5, 7, 4]
    assert step.kv_last_page_len.tolist() == [2, 4, 4]
    assert step.positions.tolist() == [3, 4, 5, 0, 1, 2, 3, 7]
    assert step.slot_mapping.tolist() == [31, 8, 9, 20, 21, 22, 23, 19]
    assert step.q_lens.tolist() == [3, 4, 1]
    assert step.kv_lens.tolist() == [6, 4, 8]
    assert {a.dtype for a in (step.qo_indptr, step.kv_indptr, step.kv_indices, step.kv_last_page_len)} == {
        np.dtype(np.int32)
    }


def test_a_step_may_be_empty() -> None:
    step = AttentionMetadata.build([], [], [], 16)
    assert (step.num_requests, step.num_tokens, step.kv_indices.tolist()) == (0, 0, [])


@pytest.mark.parametrize(
    ("starts", "lengths", "tables", "message"),
    [
        ([0], [0], [pages(1)], "request 0 of the step: 0 tokens from position 0 are no range"),
        ([0, -1], [1, 2], [pages(1), pages(2)], "request 1 of the step: 2 tokens from position -1"),
        ([3], [2], [pages(1)], "5 tokens need 2 pages of 4, its page table has 1"),
        ([0], [1], [pages(1), pages(2)], "1 starts, 1 lengths and 2 page tables"),
        ([4, 4], [1, 1], [pages(1, 2), pages(3, 2)], "slot 0 of page 2 would be written by 2 tokens"),
    ],
)
def test_a_step_that_cannot_be_is_refused(
    starts: list[int], lengths: list[int], tables: list[np.ndarray], message: str
) -> None:
    with pytest.raises(MetadataError, match=message):
        AttentionMetadata.build(starts, lengths, tables, 4)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("qo_indptr", pages(0, 3), "qo_indptr must rise from 0 to 2"),
        ("kv_indptr", pages(0, 2), "kv_indptr must rise from 0 to 1"),
        ("kv_last_page_len", pages(5), r"is not within 1\.\.4"),
        ("kv_last_page_len", pages(1), "more new tokens than keys"),
        ("kv_last_page_len", pages(2, 2), "2 entries for 1 requests"),
        ("slot_mapping", np.array([4]), "slot_mapping has 1 entries for 2 tokens"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(field: str, value: np.ndarray, message: str) -> None:
    arrays = {
        "qo_indptr": pages(0, 2),
        "kv_indptr": pages(0, 1),
        "kv_indices": pages(1),
        "kv_last_page_len": pages(2),
        "positions": np.array([0, 1]),
        "slot_mapping": np.array([4, 5]),
    }
    AttentionMetadata(page_size=4, **arrays)
    with pytest.raises(MetadataError, match=message):
        AttentionMetadata(page_size=4, **(arrays | {field: value}))
