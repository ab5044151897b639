"""A model whose linears are int8: the function it should be, and the same answer in any company."""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from tests.attention.native_levels import needs_native
from tests.runtime.engines import (
    GREEDY,
    PROMPTS,
    assert_warm_and_batched,
    cold_answers,
    make_engine,
    random_prompt,
    random_weights,
    run_checked,
    tiny_config,
    tiny_model,
    token_lists,
)
from tests.runtime.paged_driver import PagedDriver
from trunkline.runtime.engine import Engine
from trunkline.runtime.models import CausalLM
from trunkline.runtime.models.linear import Product


def int8_engine(**options: int) -> Engine:
    return make_engine(tiny_model(quantization="int8"), **options)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Rows as whole multiples of 1/127 of their largest magnitude."""
    scale = x.abs().amax(1, keepdim=True) / 127
    return torch.where(scale > 0, (x / scale).round() * scale, 0.0)


def oracle_form(parts: Sequence[torch.Tensor], bias: torch.Tensor | None, gated: bool) -> Product:
    """Products in float64 of weights and inputs that were rounded as int8 rounds them."""
    weight = rounded(torch.cat(list(parts)).double())

    def product(x: torch.Tensor) -> torch.Tensor:
        out = F.linear(rounded(x.double()), weight, None if bias is None else bias.double())
        gate, up = out.chunk(2, 1)
        return (F.silu(gate) * up if gated else out).to(x.dtype)

    return product


def test_its_logits_are_those_of_the_rounded_weights_and_inputs() -> None:
    """The same to float32's precision, but for prompts in which the last bit decides how a number is rounded: from
    there on all later roundings differ. Such are few."""
    oracle = CausalLM(tiny_config(), torch.float32, torch.device("cpu"), oracle_form)
    oracle.load_weights(random_weights(oracle))
    prompts = [random_prompt(3, seed=seed) for seed in range(32)]
    exact, found, plain = (
        torch.stack([torch.cat(running.logits) for running in PagedDriver(model).greedy(prompts, 1, 512)])
        for model in (oracle, tiny_model(quantization="int8").model, tiny_model().model)
    )
    errors, effects = (
        (logits - exact).norm(dim=(1, 2)) / exact.norm(dim=(1, 2)) for logits in (found, plain)
    )
    print(f"relative errors {errors.sort().values}; without int8 they would be {effects.sort().values}")
    assert (errors < 1e-4).float().mean() > 0.75
    assert errors.max() < 0.05
    assert effects.min() > 0.02


@needs_native
def test_its_logits_have_the_same_bits_in_any_chunks_and_any_batch() -> None:
    model = tiny_model(quantization="int8").model
    alone = [PagedDriver(model, "cpu").greedy([prompt], 4, 512)[0] for prompt in PROMPTS]
    for budget in (7, 64, 512):
        together = PagedDriver(model, "cpu").greedy(PROMPTS, 4, budget)
        for one, other in zip(alone, together, strict=True):
            assert one.tokens == other.tokens
            assert torch.equal(torch.cat(one.logits), torch.cat(other.logits))


def test_warm_and_batched_answers_equal_cold_ones() -> None:
    assert_warm_and_batched(int8_engine(), cold_answers(tiny_model(quantization="int8")))


def test_chunked_answers_equal_cold_ones() -> None:
    engine = int8_engine(max_num_batched_tokens=7)
    names = [engine.add_request(prompt, GREEDY) for prompt in PROMPTS]
    answers = run_checked(engine, names)
    assert [answers[name] for name in names] == cold_answers(tiny_model(quantization="int8"))


def test_rounding_changes_some_answer_of_a_model_of_noise() -> None:
    assert token_lists(make_engine().generate(PROMPTS, GREEDY)) != cold_answers(
        tiny_model(quantization="int8")
    )
