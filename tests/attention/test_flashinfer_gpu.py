"""The flashinfer backend on a GPU: the contract of all backends, graphs and swaps. Not yet run on one (docs/gpu.md)."""

from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from tests.attention import test_backend_contract as contract
from tests.attention.steps import make_config
from tests.attention.subjects import Subject
from trunkline.attention import HostPool, KVPool, fused
from trunkline.attention.flashinfer import CascadeRule, FlashInferBackend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="flashinfer-python is not installed"),
    pytest.mark.timeout(1200),  # the first use of a kernel compiles it
]

test_answers_equal_dense_attention = contract.test_answers_equal_dense_attention
test_every_group_and_head_size = contract.test_every_group_and_head_size
test_every_page_size = contract.test_every_page_size
test_a_window_hides_what_lies_further_back = contract.test_a_window_hides_what_lies_further_back
test_logits_are_capped = contract.test_logits_are_capped
test_random_steps = contract.test_random_steps
test_a_mask_takes_the_place_of_causality = contract.test_a_mask_takes_the_place_of_causality
test_fused_rows_are_normalised_rotated_and_attended = (
    contract.test_fused_rows_are_normalised_rotated_and_attended
)
test_layers_keep_their_own_windows_and_pages = contract.test_layers_keep_their_own_windows_and_pages
test_only_the_steps_slots_of_the_layer_are_written = (
    contract.test_only_the_steps_slots_of_the_layer_are_written
)
test_a_backend_serves_one_step_after_another = contract.test_a_backend_serves_one_step_after_another

ALWAYS = CascadeRule(launch_bytes=-(1 << 40))


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject("flashinfer", FlashInferBackend, request.param, head_dims=(64, 128, 256), device="cuda")


@pytest.mark.parametrize("mix", [[(47, 1), (32, 1), (70, 1)], [(40, 5), (32, 1), (33, 20)]])
def test_a_cascade_equals_dense_attention(mix: list[tuple[int, int]]) -> None:
    make = partial(FlashInferBackend, cascade=ALWAYS)
    subject = Subject("flashinfer", make, torch.bfloat16, device="cuda")
    config = make_config(num_heads=8, num_kv_heads=2, head_dim=128)
    subject.check(config, subject.step(config, mix, shared=32))


@pytest.mark.parametrize("rule", [ALWAYS, CascadeRule(launch_bytes=1 << 60)], ids=["cascade", "plain"])
@pytest.mark.parametrize("group", [2, 4])
def test_a_replayed_graph_answers_for_steps_that_it_was_not_recorded_with(
    rule: CascadeRule, group: int
) -> None:
    config = make_config(num_heads=2 * group, num_kv_heads=2, head_dim=128)
    make = partial(FlashInferBackend, cascade=rule)
    subject = Subject("flashinfer", make, torch.bfloat16, device="cuda")
    first = subject.step(config, [(47, 1), (32, 1), (70, 1)], shared=32)
    backend = make(config, first.pool)
    backend.reserve_rows(4)
    q, k, v = (torch.cat([rows, rows[:1]]) for rows in (first.q, first.k, first.v))
    backend.plan_padded(first.metadata, 4)
    backend.forward(0, q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend.forward(0, q, k, v)
    for mix, seed in (([(47, 1), (32, 1), (70, 1)], 1), ([(300, 1), (33, 1), (64, 1)], 2)):
        step = subject.step(config, mix, shared=32, seed=seed)
        if step.pool.num_pages > first.pool.num_pages:
            continue
        first.pool.data[:, :, : step.pool.num_pages + 1] = step.pool.data
        for static, rows in ((q, step.q), (k, step.k), (v, step.v)):
            static[:3] = rows
        backend.plan_padded(step.metadata, 4)
        graph.replay()
        assert (out[:3].double().cpu() - step.expected).abs().max() < 3e-2


def test_swapped_pages_come_back_layer_by_layer() -> None:
    config = make_config(num_layers=3, head_dim=64)
    pool = KVPool(config, 40, torch.bfloat16, "cuda")
    pool.data.normal_()
    host = HostPool(pool, 20)
    kept = pool.data[:, :, [3, 7, 30]].clone()
    host.swap_out(np.array([[3, 20], [7, 4], [30, 5]], np.int32))
    pool.data.fill_(torch.nan)
    host.swap_in(np.array([[4, 11], [20, 2], [5, 12]], np.int32))
    for layer in range(3):
        pool.await_layer(layer)
        assert torch.equal(pool.data[:, layer, [2, 11, 12]], kept[:, layer])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_kernels_do_what_torchs_operators_do(dtype: torch.dtype) -> None:
    config = make_config()
    FlashInferBackend(config, KVPool(config, 2, dtype, "cuda"))
    x, residual = torch.randn(2, 33, 576, device="cuda", dtype=dtype)
    weight = torch.rand(576, device="cuda", dtype=dtype) + 0.5
    close = partial(torch.testing.assert_close, rtol=2e-2, atol=2e-2)
    close(fused.rms_norm(x, weight, 1e-5), fused.rms_norm_torch(x, weight, 1e-5))
    total = residual + x
    close(fused.add_rms_norm(x.clone(), residual, weight, 1e-5), fused.rms_norm_torch(total, weight, 1e-5))
    close(residual, total)
    gate, up = x.chunk(2, -1)
    close(fused.silu_mul(x), torch.nn.functional.silu(gate) * up)
    assert fused.rms_norm(x[:0], weight, 1e-5).shape == (0, 576)
