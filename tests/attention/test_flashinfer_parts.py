"""The parts of the flashinfer backend that need no FlashInfer: which steps cascade, how they are cut, what is refused."""

import sys
from pathlib import Path
from subprocess import run

import numpy as np
import pytest
import torch

from tests.attention.recorded_streams import RecordedStreams
from tests.attention.steps import make_config
from trunkline.attention import AttentionMetadata, KVPool, make_backend
from trunkline.attention.flashinfer import CascadeRule, unavailable
from trunkline.attention.flashinfer.cascade import shared_pages
from trunkline.attention.flashinfer.problem import Problem, cut, padded
from trunkline.attention.flashinfer.staging import Staging
from trunkline.errors import ConfigError


def step(tables: list[list[int]], starts: list[int], lengths: list[int] | None = None) -> AttentionMetadata:
    arrays = [np.array(table, np.int32) for table in tables]
    return AttentionMetadata.build(starts, lengths or [1] * len(starts), arrays, 4)


@pytest.mark.parametrize(
    ("tables", "starts", "pages"),
    [
        ([[7, 8, 1], [7, 8, 2]], [8, 9], 2),
        ([[7, 8, 1], [7, 8, 2]], [9, 9], 2),
        ([[7, 8, 1], [7, 9, 2]], [9, 9], 1),
        ([[7, 8, 1], [6, 8, 2]], [9, 9], 0),
        ([[7, 8, 1], [7, 8, 2], [7, 3]], [9, 9, 4], 1),
        ([[7, 8], [7, 9]], [4, 5], 1),
        ([[7, 8, 1]], [9], 0),
        ([[7], [8]], [0, 0], 0),
    ],
)
def test_the_pages_that_all_share_and_none_writes_are_counted(
    tables: list[list[int]], starts: list[int], pages: int
) -> None:
    assert shared_pages(step(tables, starts)) == pages


@pytest.mark.parametrize("shared", [1, 7, 8, 9, 16, 17, 40, 63])
def test_long_prefixes_are_counted_to_the_page(shared: int) -> None:
    trunk = list(range(100, 100 + shared))
    tables = [[*trunk, *range(200 * i, 200 * i + 64 - shared)] for i in range(1, 4)]
    assert shared_pages(step(tables, [255, 255, 255])) == shared


def test_a_cascade_pays_by_the_bytes_it_saves() -> None:
    rule, config = CascadeRule(), make_config(num_heads=32, num_kv_heads=8, head_dim=128)

    def pays(requests: int, shared: int, tokens: int | None = None) -> bool:
        return rule.pays(config, 2, requests, tokens or requests, shared)

    assert pays(64, 4096)
    assert pays(16, 992)
    assert not pays(1, 100_000)
    assert not pays(64, 0)
    assert not pays(2, 256)
    # The merge grows with the new tokens: two long chunks behind a short prefix are better off without.
    assert not pays(2, 2048, tokens=4096)
    assert [n for n in range(1, 200) if pays(n, 512)] == list(
        range(next(n for n in range(1, 200) if pays(n, 512)), 200)
    )


def test_a_cut_step_keeps_every_page_once() -> None:
    whole = Problem.of(step([[7, 8, 1], [7, 8, 2, 3], [7, 8, 4]], [9, 12, 8], [2, 1, 4]))
    prefix, rest = cut(whole, 2)
    assert prefix.kv_indices.tolist() == [7, 8]
    assert prefix.qo_indptr.tolist() == [0, 7]
    assert prefix.kv_lens.tolist() == [8]
    assert rest.kv_indices.tolist() == [1, 2, 3, 4]
    assert rest.kv_indptr.tolist() == [0, 1, 3, 4]
    assert (rest.kv_lens + 8).tolist() == whole.kv_lens.tolist()


def test_padding_rows_attend_to_one_slot_of_page_0() -> None:
    whole = padded(Problem.of(step([[7, 8], [9]], [5, 2])), 4)
    assert whole.kv_indices.tolist() == [7, 8, 9, 0, 0]
    assert whole.kv_lens.tolist() == [6, 3, 1, 1]
    assert whole.qo_indptr.tolist() == [0, 1, 2, 3, 4]
    assert padded(Problem.of(step([], [])), 2).kv_lens.tolist() == [1, 1]


def test_staged_arrays_outlive_a_buffer_that_grows() -> None:
    staging = Staging(torch.device("cpu"), RecordedStreams())
    staging.begin()
    small, large = np.arange(10, dtype=np.int32), np.arange(1 << 17, dtype=np.int32)
    host, device = staging.copy([small])
    more, _ = staging.copy([large, small])
    staging.end()
    assert (host[0].numpy() == small).all()
    assert (device[0].numpy() == small).all()
    assert (more[0].numpy() == large).all()


def test_no_gpu_is_one_line() -> None:
    config = make_config()
    with pytest.raises(
        ConfigError, match=r"^attention: the flashinfer backend needs a CUDA GPU; the KV pool is on cpu$"
    ):
        make_backend("flashinfer", config, KVPool(config, 4, torch.bfloat16))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "reason"),
    [
        (torch.float32, 64, "no kernels for torch.float32"),
        (torch.bfloat16, 80, "head_dim is 80"),
        (torch.bfloat16, 128, "pip install trunkline[cuda]"),
    ],
)
def test_what_is_missing_is_named(
    dtype: torch.dtype, head_dim: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.attention.flashinfer.library.find_spec", lambda name: None)
    found = unavailable(make_config(head_dim=head_dim), dtype, torch.device("cuda"))
    assert found is not None
    assert reason in found
    assert "\n" not in found


def test_flashinfer_is_imported_only_when_it_is_chosen() -> None:
    script = "import sys, trunkline.attention.flashinfer; print('flashinfer' in sys.modules)"
    done = run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path("/"), check=True)
    assert done.stdout.strip() == "False"
