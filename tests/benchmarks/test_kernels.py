from __future__ import annotations

import pytest
import torch

from benchmarks import kernels
from trunkline.attention import native

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason="no native kernels")


def test_linears_are_timed_where_torch_packs_no_bf16_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(weight: torch.Tensor) -> None:
        raise RuntimeError("bf16 path needs the cpu support")

    monkeypatch.setattr(kernels, "one_dnn", refuse)
    times = kernels.linears(rows=1, rounds=1)
    assert list(times) == ["bf16", "int8", "Q4_1", "Q8_0"]
    assert all(time > 0 for time in times.values())
