"""Engines for tests: a tiny random model behind the embedded tokenizer, and small pools on request."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.fakes.async_runner import FakeAsyncRunner
from trunkline.radix import RadixConfig
from trunkline.runtime.engine import Engine, EngineConfig, Generation
from trunkline.runtime.loading import LoadedModel, Tokenizer, load_model, load_tokenizer
from trunkline.runtime.models import CausalLM, ModelConfig, build_model
from trunkline.runtime.sampling import SamplingParams
from trunkline.scheduler import SchedulerConfig

DATA = Path(__file__).resolve().parent.parent / "data"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def random_prompt(length: int, seed: int) -> list[int]:
    """Token ids that are no control tokens."""
    return np.random.default_rng(seed).integers(20, 40000, length).tolist()


PROMPTS = [random_prompt(length, seed=length) for length in (1, 15, 16, 17, 40, 100, 333)]


@cache
def embedded_tokenizer() -> Tokenizer:
    return load_tokenizer(None)


@cache
def smollm2() -> LoadedModel:
    """The real embedded model, in float32."""
    return load_model(None, dtype="float32", device="cpu")


@cache
def tiny_model(seed: int = 0, max_positions: int = 2048, quantization: str | None = None) -> LoadedModel:
    """A two-layer llama with random float32 weights, wide enough apart that greedy choices have no near-ties."""
    tokenizer = embedded_tokenizer()
    config = tiny_config(max_positions)
    model = build_model(config, torch.float32, "cpu", quantization)
    model.load_weights(random_weights(model, seed))
    return LoadedModel(model, config, tokenizer, "tiny", tokenizer.eos_token_ids, {})


def tiny_config(max_positions: int = 2048) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=embedded_tokenizer().vocab_size,
        hidden_size=48,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_positions=max_positions,
        tied_embeddings=True,
    )


def random_weights(model: CausalLM, seed: int = 0, scale: float = 0.3) -> Iterator[tuple[str, torch.Tensor]]:
    """Random weights by their Hugging Face names; ones for the norms."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in model.weight_shapes.items():
        yield name, torch.ones(shape) if "norm" in name else torch.randn(shape, generator=generator) * scale


@cache
def cold_answers(loaded: LoadedModel | None = None, kv_cache_dtype: str = "auto") -> list[list[int]]:
    """The answer to each of `PROMPTS` from an engine of its own."""
    return [
        make_engine(loaded, kv_cache_dtype=kv_cache_dtype).generate([prompt], GREEDY)[0].token_ids
        for prompt in PROMPTS
    ]


def assert_warm_and_batched(engine: Engine, cold: list[list[int]]) -> None:
    """Asked all together, then from the cache, the answers to `PROMPTS` are those of each alone."""
    for _ in range(3):
        answers = engine.generate(PROMPTS, GREEDY)
        assert token_lists(answers) == cold
        assert_idle(engine)
    assert [answer.num_cached_tokens for answer in answers] == [len(prompt) - 1 for prompt in PROMPTS]


def make_engine(
    loaded: LoadedModel | None = None,
    *,
    tokens: int = 4096,
    page_size: int = 16,
    overlap: bool = False,
    kv_cache_dtype: str = "auto",
    **scheduler: Any,
) -> Engine:
    """An engine with a pool of `tokens` tokens; further keywords are settings of the scheduler."""
    config = EngineConfig(
        kv_cache_tokens=tokens,
        kv_cache_dtype=kv_cache_dtype,
        overlap=overlap,
        seed=0,
        radix=RadixConfig(page_size=page_size),
        scheduler=SchedulerConfig(**scheduler),
    )
    return Engine(config, loaded=loaded or tiny_model())


def make_late_engine(loaded: LoadedModel | None = None, **settings: Any) -> tuple[Engine, FakeAsyncRunner]:
    """An engine whose steps overlap, on a device that computes nothing before a result is asked for."""
    engine = make_engine(loaded, overlap=True, **settings)
    device = FakeAsyncRunner(engine.runner)
    engine._launcher = device
    return engine, device


def taught_short_answers(engine: Engine) -> Engine:
    """Has answered briefly before, so admission expects short answers, and long ones then meet a full pool."""
    prompts = [random_prompt(5, seed=900 + number) for number in range(8)]
    engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1))
    return engine


def run_checked(engine: Engine, names: Sequence[str]) -> dict[str, list[int]]:
    """Steps until the named requests are done, with every invariant checked after each step."""
    tokens: dict[str, list[int]] = {name: [] for name in names}
    while engine.has_work:
        for output in engine.step():
            tokens[output.id].extend(output.token_ids)
        engine.check()
    return tokens


def token_lists(generations: Sequence[Generation]) -> list[list[int]]:
    return [generation.token_ids for generation in generations]


def assert_idle(engine: Engine) -> None:
    """Nothing is held by anyone: every page is free or evictable, and the invariants hold."""
    engine.check()
    pool = engine.cache.pool
    assert pool.num_in_use == 0
    assert pool.num_free + pool.num_evictable == pool.num_pages
