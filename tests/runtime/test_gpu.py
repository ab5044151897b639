"""Models and engines on a GPU: logits next to transformers', graphs next to eager, overlap next to none."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.gpu_engine import word_tokenizer
from tests.runtime.engines import token_lists
from trunkline.radix import RadixConfig
from trunkline.runtime.engine import Engine, EngineConfig
from trunkline.runtime.loading import LoadedModel
from trunkline.runtime.models import CausalLM, ModelConfig, build_model
from trunkline.runtime.sampling import SamplingParams
from trunkline.scheduler import SchedulerConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(1200),  # the first use of a kernel compiles it
]
VOCAB = 4096
BACKENDS = ["torch", *(["flashinfer"] if find_spec("flashinfer") is not None else [])]


@pytest.fixture(scope="module")
def theirs() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=128,
        max_position_embeddings=1024,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


@pytest.fixture(scope="module")
def ours(theirs: LlamaForCausalLM) -> CausalLM:
    config = ModelConfig.from_hf_config({**theirs.config.to_dict(), "architectures": ["LlamaForCausalLM"]})
    model = build_model(config, torch.bfloat16, "cuda")
    model.load_weights(theirs.state_dict().items())
    return model


def engine(model: CausalLM, backend: str, **options: object) -> Engine:
    loaded = LoadedModel(model, model.config, word_tokenizer(VOCAB), "random", frozenset(), {})
    settings = {"kv_cache_tokens": 4096, "seed": 0, "radix": RadixConfig(page_size=16)}
    return Engine(
        EngineConfig(attention_backend=backend, device="cuda", **(settings | options)), loaded=loaded
    )


def prompt(number: int) -> list[int]:
    """Forty tokens that all prompts begin with, and some of their own."""
    shared, own = (np.random.default_rng(seed).integers(1, VOCAB, 40 + number) for seed in (0, 1 + number))
    return [*shared[:40].tolist(), *own[: 5 + number].tolist()]


PROMPTS = [prompt(number) for number in range(5)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_probabilities_stay_close_to_transformers(
    theirs: LlamaForCausalLM, ours: CausalLM, backend: str
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)
    for prompt, answer in zip(PROMPTS, engine(ours, backend).generate(PROMPTS, params), strict=True):
        tokens = torch.tensor([prompt + answer.token_ids], device="cuda")
        logits = theirs(tokens).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, tokens[0, len(prompt) :, None])[:, 0]
        # Greedy in bfloat16: what we chose is theirs, or a near-tie of it.
        assert (logits.max(-1).values - chosen).max() < 0.1 * logits.std()


@pytest.mark.skipif(len(BACKENDS) < 2, reason="flashinfer-python is not installed")
def test_graphs_change_no_greedy_token(ours: CausalLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    replaying = engine(ours, "flashinfer")
    assert replaying.runner.graphs is not None
    eager = engine(ours, "flashinfer")
    eager.runner.graphs = None
    first, second = (token_lists(one.generate(PROMPTS, params)) for one in (replaying, eager))
    same = sum(
        a == b for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert same >= 0.9 * 24 * len(
        PROMPTS
    )  # a near-tie may fall otherwise: padding changes a product's rounding


@pytest.mark.parametrize("backend", BACKENDS)
def test_overlap_changes_no_token(ours: CausalLM, backend: str) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True)
    answers = [
        token_lists(engine(ours, backend, overlap=overlap).generate(PROMPTS, params))
        for overlap in (False, True)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_swapped_requests_end_as_undisturbed_ones(ours: CausalLM, backend: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    free = token_lists(engine(ours, backend).generate(PROMPTS, params))
    tight = engine(ours, backend, kv_cache_tokens=640, scheduler=SchedulerConfig(num_host_pages=64))
    crowded = token_lists(tight.generate(PROMPTS, params))
    assert [len(tokens) for tokens in crowded] == [len(tokens) for tokens in free]
    assert [tokens[:8] for tokens in crowded] == [tokens[:8] for tokens in free]
    tight.check()
