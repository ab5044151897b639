"""The quality table: what its columns say of two runs."""

import math

from benchmarks.quality import Measured, common_length, row


def test_a_row_compares_with_the_first() -> None:
    expected = Measured([-1.0] * 4, [5, 6, 7, 8], [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1]], 500.0)
    found = Measured([-2.0] * 4, [5, 6, 7, 0], [[1, 2, 3], [4, 0, 6], [7, 8, 0], [0, 1, 1]], 250.4)
    assert row("int8", found, expected) == f"| int8 | {math.exp(2):.3f} | 75.0% | 25% | 1 tokens | 250 |"
    assert row("same", expected, expected).endswith("| 100.0% | 100% | - | 500 |")


def test_answers_agree_up_to_their_first_difference() -> None:
    assert [common_length([1, 2, 3], other) for other in ([0, 2, 3], [1, 2, 0], [1, 2, 3])] == [0, 2, 3]
