"""The flashinfer backend under emulation: the contract of all backends, and what is its own."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

from tests.attention import test_backend_contract as contract
from tests.attention.flashinfer_emulation import Emulation, emulate
from tests.attention.recorded_streams import RecordedStreams
from tests.attention.steps import make_config, make_step
from tests.attention.subjects import Subject
from trunkline.attention import AttentionConfig, AttentionMetadata, HostPool, KVPool
from trunkline.attention.flashinfer import CascadeRule, FlashInferBackend
from trunkline.errors import ConfigError

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
test_very_uneven_lengths_are_answered = contract.test_very_uneven_lengths_are_answered
test_layers_keep_their_own_windows_and_pages = contract.test_layers_keep_their_own_windows_and_pages
test_the_scale_is_the_configs = contract.test_the_scale_is_the_configs
test_a_request_gets_the_same_answer_alone_and_in_company = (
    contract.test_a_request_gets_the_same_answer_alone_and_in_company
)
test_only_the_steps_slots_of_the_layer_are_written = (
    contract.test_only_the_steps_slots_of_the_layer_are_written
)
test_a_backend_serves_one_step_after_another = contract.test_a_backend_serves_one_step_after_another
test_a_page_outside_the_pool_is_refused = contract.test_a_page_outside_the_pool_is_refused
test_a_step_with_other_pages_than_the_pools_is_refused = (
    contract.test_a_step_with_other_pages_than_the_pools_is_refused
)
test_a_pool_made_for_another_model_is_refused = contract.test_a_pool_made_for_another_model_is_refused

ALWAYS, NEVER = CascadeRule(launch_bytes=-(1 << 40)), CascadeRule(launch_bytes=1 << 60)


@pytest.fixture
def emulation() -> Iterator[Emulation]:
    with pytest.MonkeyPatch.context() as patch:
        yield emulate(patch)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def subject(request: pytest.FixtureRequest, emulation: Emulation) -> Subject:
    make = partial(FlashInferBackend, library=emulation.library)
    return Subject("flashinfer", make, request.param, head_dims=(64, 128, 256))


DECODES = [(47, 1), (32, 1), (70, 1)]


@pytest.mark.parametrize("group", range(1, 9))
def test_decodes_run_on_tensor_cores_where_a_group_fills_them_or_no_other_kernel_has_its_size(
    subject: Subject, emulation: Emulation, group: int
) -> None:
    config = make_config(num_heads=2 * group, num_kv_heads=2)
    subject.check(config, subject.step(config, DECODES))
    kinds = {module[0] for module in emulation.modules}
    assert kinds == ({"decode"} if group < 4 else {"prefill"})


def test_a_step_is_planned_once_for_each_window_and_run_once_for_each_layer(
    subject: Subject, emulation: Emulation
) -> None:
    config = AttentionConfig(6, 4, 2, 64, 16, scale=0.1, sliding_window=(None, 7, 7, None, 30, 7))
    step = subject.step(config, contract.MIXES["all at once"])
    backend = subject.make(config, step.pool)
    for number in (1, 2):
        backend.plan(step.metadata)
        assert emulation.num_plans == 3 * number
        for layer in range(6):
            backend.forward(layer, step.q, step.k, step.v)
    assert emulation.calls.count("run prefill") == 12


@pytest.mark.parametrize("soft_cap", [None, 1.5])
@pytest.mark.parametrize("mix", [DECODES, [(40, 5), (32, 1), (33, 20)], [(64, 3), (64, 3)]])
def test_a_shared_prefix_is_read_by_a_call_of_its_own_and_merged(
    emulation: Emulation, mix: list[tuple[int, int]], soft_cap: float | None
) -> None:
    config = make_config(soft_cap=soft_cap)
    for rule, calls in ((ALWAYS, 2), (NEVER, 1)):
        subject = Subject(
            "flashinfer", partial(FlashInferBackend, library=emulation.library, cascade=rule), torch.bfloat16
        )
        emulation.calls.clear()
        subject.check(config, subject.step(config, mix, shared=32))
        assert sum(call.startswith("run") for call in emulation.calls) == calls


def test_layers_with_a_window_take_no_part_in_a_cascade(emulation: Emulation) -> None:
    config = AttentionConfig(2, 4, 2, 64, 16, scale=0.125, sliding_window=(None, 40))
    make = partial(FlashInferBackend, library=emulation.library, cascade=ALWAYS)
    subject = Subject("flashinfer", make, torch.float16)
    for layer, calls in ((0, 2), (1, 1)):
        emulation.calls.clear()
        subject.check(config, subject.step(config, DECODES, shared=32, layer=layer), layer)
        assert sum(call.startswith("run") for call in emulation.calls) == calls


def test_models_without_kernels_are_refused_in_one_line(emulation: Emulation) -> None:
    config = make_config()
    with pytest.raises(
        ConfigError, match=r"^attention: the flashinfer backend has no kernels for torch\.float32 keys"
    ):
        FlashInferBackend(config, KVPool(config, 4, torch.float32), library=emulation.library)
    config = make_config(head_dim=96)
    with pytest.raises(
        ConfigError, match=r"^attention: head_dim is 96; the flashinfer backend takes 64, 128, 256"
    ):
        FlashInferBackend(config, KVPool(config, 4, torch.float16), library=emulation.library)


class Decodes:
    """A backend with room for graphs, and steps of decodes over one pool."""

    def __init__(self, emulation: Emulation, cascade: CascadeRule = NEVER, **config: int) -> None:
        self.config = make_config(num_heads=8, num_kv_heads=2, **config)
        self.subject = Subject("flashinfer", self.make, torch.bfloat16)
        self.library = emulation.library
        self.cascade = cascade

    def make(self, config: AttentionConfig, pool: KVPool) -> FlashInferBackend:
        return FlashInferBackend(config, pool, library=self.library, cascade=self.cascade)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("rule", [ALWAYS, NEVER], ids=["cascade", "plain"])
@pytest.mark.parametrize("num_rows", [3, 4, 8])
def test_padding_rows_change_nothing_and_write_only_page_0(
    emulation: Emulation, num_rows: int, rule: CascadeRule, window: int | None
) -> None:
    setup = Decodes(emulation, rule, window=window)
    step = setup.subject.step(setup.config, DECODES, shared=32)
    backend = setup.make(setup.config, step.pool)
    backend.reserve_rows(8)
    key = backend.plan_padded(step.metadata, num_rows)
    assert key == (num_rows, rule is ALWAYS and window is None)
    filler = torch.full((num_rows - 3, 12, 64), torch.nan, dtype=torch.bfloat16)
    q, k, v = (torch.cat([rows, filler[:, : rows.shape[1]]]) for rows in (step.q, step.k, step.v))
    before = step.pool.data.clone()
    out = backend.forward(0, q, k, v)
    assert (out[:3].double() - step.expected).abs().max() < 3e-2
    before[:, :, 0] = step.pool.data[:, :, 0]
    slots = torch.from_numpy(step.metadata.slot_mapping)
    before[:, 0].flatten(1, 2)[:, slots] = torch.stack([step.k, step.v])
    torch.testing.assert_close(step.pool.data, before, rtol=0, atol=0, equal_nan=True)


def test_a_graphs_kernels_find_every_step_at_the_same_addresses(emulation: Emulation) -> None:
    setup = Decodes(emulation, ALWAYS)
    step = setup.subject.step(setup.config, DECODES, shared=32)
    backend = setup.make(setup.config, step.pool)
    backend.reserve_rows(8)
    empty = AttentionMetadata.build([], [], [], 16)
    tables = [step.metadata.kv_indices[:1], step.metadata.kv_indices[:3]]
    addresses: dict[object, list[int]] = {}
    for metadata in (
        empty,
        step.metadata,
        AttentionMetadata.build([40], [1], tables[1:], 16),
        step.metadata,
        empty,
    ):
        for num_rows in (4, 8):
            key = backend.plan_padded(metadata, num_rows)
            backend.forward(0, *(rows[:1].repeat(num_rows, 1, 1) for rows in (step.q, step.k, step.v)))
            used = [int(address) for address in emulation.addresses]
            emulation.addresses.clear()
            assert addresses.setdefault(key, used) == used
    assert len(addresses) == 4


def test_steps_that_do_not_fit_a_graph_are_left_to_plan(emulation: Emulation) -> None:
    setup = Decodes(emulation)
    step = setup.subject.step(setup.config, [(10, 2), (3, 1)])
    backend = setup.make(setup.config, step.pool)
    backend.reserve_rows(64)
    assert backend.plan_padded(step.metadata, 8) is None
    table = np.tile(np.arange(1, step.pool.num_pages + 1, dtype=np.int32), 80)
    long = AttentionMetadata.build([16 * len(table) - 1], [1], [table], 16)
    assert backend.plan_padded(long, 1) is None
    assert backend.plan_padded(AttentionMetadata.build([3], [1], [table], 16), 1) is not None


def test_nothing_is_planned_or_staged_over_what_the_device_may_still_have_to_copy(
    emulation: Emulation,
) -> None:
    config, streams = make_config(), RecordedStreams()
    step = make_step(config, DECODES, dtype=torch.bfloat16)
    backend = FlashInferBackend(config, step.pool, library=emulation.library, streams=streams)
    marks: list[list[int]] = []
    for _ in range(4):
        before = len(streams.log)
        backend.plan(step.metadata)
        news = streams.log[before:]
        # The buffer's event and the wrapper's: waited for before, marked after.
        assert [what for _, what, _ in news] == ["synchronize", "synchronize", "record", "record"]
        assert news[0][2] == news[3][2]
        assert news[1][2] == news[2][2]
        marks.append([event for _, _, event in news[:2]])
    buffers, wrappers = zip(*marks, strict=True)
    assert buffers == (buffers[0], buffers[1]) * 2
    assert len(set(buffers)) == 2
    assert len(set(wrappers)) == 1


def test_layers_wait_for_their_own_swapped_pages(emulation: Emulation) -> None:
    config, streams = make_config(num_layers=2), RecordedStreams()
    step = make_step(config, DECODES, dtype=torch.bfloat16)
    backend = FlashInferBackend(config, step.pool, library=emulation.library)
    host = HostPool(step.pool, 2, streams)
    host.swap_out(np.array([[1, 1]], np.int32))
    host.swap_in(np.array([[1, 2]], np.int32))
    streams.log.clear()
    backend.plan(step.metadata)
    for layer in range(2):
        backend.forward(layer, step.q, step.k, step.v)
        assert len(streams.log) == layer + 1
