"""The least time of each workload, against figures that were computed by others from the same rates."""

import pytest

from benchmarks.limits import SMOLLM2, Rates, Work, floor, work_of
from benchmarks.workloads import WORKLOADS
from trunkline.runtime.loading import load_tokenizer

RATES = Rates(flops=430e9, read=28.6e9)


@pytest.fixture(scope="module")
def works() -> dict[str, Work]:
    tokenizer = load_tokenizer()
    return {name: work_of(name, tokenizer) for name in WORKLOADS}


def test_the_model_weighs_what_it_weighs() -> None:
    assert SMOLLM2.layer_weights + SMOLLM2.head_weights == 134_479_872
    assert SMOLLM2.kv_bytes == 23_040
    # A decode step of one stream without context: every weight read once takes 9.4 ms at 28.6 GB/s.
    assert floor(Work(0, 0, 0, 1, 1, 0), RATES) == pytest.approx(9.4e-3, rel=0.001)


@pytest.mark.parametrize(("name", "seconds"), [("W1", 3.0), ("W2", 4.3), ("W4", 5.4)])
def test_floors_of_shared_prefixes_agree_with_the_known_ones(
    works: dict[str, Work], name: str, seconds: float
) -> None:
    assert floor(works[name], RATES) == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize(("name", "seconds"), [("W3", 11.9), ("W5", 12.0)])
def test_floors_without_sharing_are_lower_by_the_decode_steps_products(
    works: dict[str, Work], name: str, seconds: float
) -> None:
    """The known figures add the decode steps' operations to their bytes; ours takes the larger of both."""
    work = works[name]
    products = work.steps * work.streams * 2 * SMOLLM2.layer_weights / RATES.flops
    assert floor(work, RATES) + products == pytest.approx(seconds, rel=0.01)


def test_work_is_what_the_workload_says(works: dict[str, Work]) -> None:
    assert works["S"].computed == 64
    assert (works["S"].steps, works["S"].streams, works["S"].pairs) == (255, 1, 64 * 65 // 2)
    assert (works["W2"].steps, works["W2"].streams, works["W2"].requests) == (4 * 47, 16, 64)
    assert works["W5"].steps == 383
    assert works["W1"].computed < 1000 + 64 * 40
