"""The flashinfer backend under emulation: the contract of all backends, and what is its own."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

from tests.attention import test_backend_contract as contract
from tests.attention.flashinfer_emulation import Emulation, emulate
from tests.attention.steps import make_config
from tests.attention.subjects import Subject
from trunkline.attention import AttentionConfig, AttentionMetadata, KVPool, make_backend
from trunkline.attention.flashinfer import CascadeRule, FlashInferBackend
from trunkline.errors import ConfigError

test_answers_equal_dense_attention = contract.test_answers_equal_dense_attention
test_every_group_and_head_size = contract.test_every_group_and_head_size
test_every_page_size = contract.test_every_page_size
test_a_window_hides_what_lies_further_back = contract.test_a_window_hides_what_lies_further_back
test_logits_are_capped = contract.test_logits_are_capped
test_random_steps = contract.test_random_steps
test_a_mask_takes_the_place_of_causality = contract.test_a_mask_takes_the_place_of_causality
test_fused_rows_are_normalised_rotated_and_attended = contract.test_fused_rows_are_normalised_rotated_and_attended
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
