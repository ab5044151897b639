"""All layers in one native call: what the layers give one by one."""

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.attention.steps import poison
from tests.runtime.hf_models import VARIANTS, VOCAB, make_pair
from trunkline.attention import AttentionMetadata, KVPool, native
from trunkline.attention.cpu import CpuBackend
from trunkline.attention.native_decoder import PHASES
from trunkline.runtime.models import CausalLM, build_model

pytestmark = pytest.mark.skipif(not native.supports(torch.float32), reason=str(native.unavailable()))

LENGTHS = (3, 40, 1)


class Steps:
    """The same two steps of three requests through a model: chunks, then what follows them."""

    def __init__(
        self,
        model: CausalLM,
        backend: Callable[[CpuBackend], object] = lambda backend: backend,
        kv_dtype: torch.dtype | None = None,
    ):
        config = model.config.attention_config(16)
        self.pool = KVPool(config, 16, kv_dtype or model.dtype)
        poison(self.pool)
        self.own = CpuBackend(config, self.pool)
        self.backend = backend(self.own)
        self.model = model

    def run(self, starts: Sequence[int], lengths: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        pages = [np.arange(1 + 4 * i, 5 + 4 * i, dtype=np.int32) for i in range(len(starts))]
        tables = [
            own[: -(-(start + length) // 16)]
            for own, start, length in zip(pages, starts, lengths, strict=True)
        ]
        step = AttentionMetadata.build(starts, lengths, tables, 16)
        self.backend.plan(step)  # type: ignore[attr-defined]
        ids = torch.from_numpy(np.random.default_rng(sum(starts)).integers(0, VOCAB, sum(lengths)))
        return self.model.forward(ids, self.backend, torch.tensor(rows))  # type: ignore[arg-type]

    def both(self) -> torch.Tensor:
        """Logits of the step of chunks (two of them for the same row), and of a decode step after it."""
        ends = np.cumsum(LENGTHS) - 1
        first = self.run((0, 0, 0), LENGTHS, [5, 6, *ends, ends[-1]])
        return torch.cat([first, self.run(LENGTHS, (1, 1, 1), [2, 0, 1])])


class LayerByLayer:
    """A CPU backend that a model does not know as one."""

    def __init__(self, backend: CpuBackend) -> None:
        self.plan = backend.plan
        self.forward_fused = backend.forward_fused


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_logits_are_those_of_the_layers_one_by_one_bit_for_bit(variant: str) -> None:
    model = make_pair(variant).ours
    native_steps = Steps(model)
    found, expected = native_steps.both(), Steps(model, LayerByLayer).both()
    assert torch.equal(found, expected)
    assert torch.equal(found[4], found[5])  # the row that was asked for twice


@pytest.mark.parametrize("variant", ["llama", "qwen3-biases", "mistral-window"])
def test_bfloat16_logits_are_those_of_the_layers_one_by_one(variant: str) -> None:
    model = make_pair(variant, torch.bfloat16).ours
    found, expected = Steps(model).both(), Steps(model, LayerByLayer).both()
    assert found.dtype == torch.float32
    assert torch.equal(found.bfloat16().float(), expected)


@pytest.mark.parametrize("variant", ["llama", "qwen3-biases"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_logits_are_those_of_the_layers_one_by_one(variant: str, dtype: torch.dtype) -> None:
    pair = make_pair(variant)
    model = build_model(pair.ours.config, dtype, quantization="int8")
    model.load_weights(pair.theirs.state_dict().items())
    steps = Steps(model)
    found, expected = steps.both(), Steps(model, LayerByLayer).both()
    assert model.native_decoder(steps.own) is not None
    assert torch.equal(found.to(dtype).float(), expected)


@pytest.mark.parametrize("variant", ["llama", "qwen3-biases"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_int8_pages_logits_are_those_of_the_layers_one_by_one(variant: str, dtype: torch.dtype) -> None:
    model = make_pair(variant, dtype).ours
    steps = Steps(model, kv_dtype=torch.int8)
    found, expected = steps.both(), Steps(model, LayerByLayer, torch.int8).both()
    assert model.native_decoder(steps.own) is not None
    assert torch.equal(found.to(dtype).float(), expected)


def test_threads_do_not_show_in_the_result() -> None:
    model = make_pair("qwen2", torch.bfloat16).ours
    before = torch.get_num_threads()
    found = []
    try:
        for num_threads in (1, 2, 5):
            torch.set_num_threads(num_threads)
            found.append(Steps(model).both())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_it_says_where_its_time_went() -> None:
    model = make_pair("llama").ours
    steps = Steps(model)
    steps.both()
    decoder = model.native_decoder(steps.own)
    assert decoder is not None
    assert tuple(decoder.seconds) == PHASES
    assert all(seconds > 0 for seconds in decoder.seconds.values())


def test_without_whole_tiles_the_layers_run_one_by_one() -> None:
    model = make_pair("llama-head-dim", torch.bfloat16).ours
    steps = Steps(model)
    assert model.native_decoder(steps.own) is None
    assert torch.equal(steps.both(), Steps(model, LayerByLayer).both())


def test_a_backend_is_not_kept_alive_by_the_model_that_ran_on_it() -> None:
    config = make_pair("llama").ours.config
    model = build_model(config, torch.float32)
    model.load_weights(make_pair("llama").theirs.state_dict().items())
    steps = Steps(model)
    steps.both()
    backend = weakref.ref(steps.own)
    del steps
    assert backend() is None
