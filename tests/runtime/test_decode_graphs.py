"""Decode graphs on a CPU: FlashInfer under emulation, and a recorder that repeats the work on the same memory."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests.attention.flashinfer_emulation import Emulation, emulate
from tests.runtime.engines import embedded_tokenizer, random_prompt, random_weights, token_lists
from trunkline.attention import AttentionConfig, AttentionMetadata, KVPool, fused, make_backend
from trunkline.attention.flashinfer import CascadeRule, FlashInferBackend
from trunkline.radix import RadixConfig
from trunkline.runtime.engine import Engine, EngineConfig, assembly
from trunkline.runtime.engine.decode_graphs import DecodeGraphs, graph_sizes
from trunkline.runtime.loading import LoadedModel
from trunkline.runtime.models import CausalLM, ModelConfig, build_model
from trunkline.runtime.sampling import SamplingParams

CONFIG = ModelConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=embedded_tokenizer().vocab_size,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=1,
    head_dim=64,
    max_positions=512,
    tied_embeddings=True,
    qk_norm=True,
)


class Repeater:
    """As a CUDA graph: the same work, reading the same inputs and writing the same result."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replayed = 0

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        self.num_recorded += 1
        result = work()

        def replay() -> None:
            self.num_replayed += 1
            result.copy_(work())

        return result, replay


@pytest.fixture(scope="module")
def model() -> CausalLM:
    model = build_model(CONFIG, torch.bfloat16)
    model.load_weights(random_weights(model, scale=0.2))
    return model


@pytest.fixture
def emulation() -> Iterator[Emulation]:
    with pytest.MonkeyPatch.context() as patch:
        yield emulate(patch)


class Setup:
    """A pool with three requests' pages in it, read by two backends: with graphs, and torch's for what is right."""

    def __init__(self, emulation: Emulation, model: CausalLM, rule: CascadeRule, max_rows: int = 8) -> None:
        config = model.config.attention_config(16)
        self.pool = KVPool(config, 12, torch.bfloat16)
        self.pool.data.copy_(torch.randn(self.pool.data.shape, generator=torch.Generator().manual_seed(1)))
        self.model = model
        backend = FlashInferBackend(config, self.pool, library=emulation.library, cascade=rule)
        self.recorder = Repeater()
        self.graphs = DecodeGraphs(model, backend, self.pool, max_rows, self.recorder)

    def expected(self, metadata: AttentionMetadata, token_ids: torch.Tensor) -> torch.Tensor:
        backend = make_backend("torch", self.pool.config, self.pool)
        backend.plan(metadata)
        return self.model.forward(token_ids, backend, torch.arange(len(token_ids)))


def decodes(*starts: int) -> AttentionMetadata:
    tables = [np.array([3, 7, 2 + i, 9 + i], np.int32) for i in (2, 3, 1)]
    return AttentionMetadata.build(starts, [1] * len(starts), tables[: len(starts)], 16)


ALWAYS, NEVER = CascadeRule(launch_bytes=-(1 << 40)), CascadeRule(launch_bytes=1 << 60)


@pytest.mark.parametrize("rule", [ALWAYS, NEVER], ids=["cascade", "plain"])
def test_replays_with_padding_give_the_models_logits(
    emulation: Emulation, model: CausalLM, rule: CascadeRule
) -> None:
    setup = Setup(emulation, model, rule)
    setup.graphs.warm_up()
    assert setup.recorder.num_recorded == len(graph_sizes(8))
    for starts in ((40, 33, 50), (41, 34, 51), (35,), (36, 40), (42, 35, 52)):
        metadata, token_ids = decodes(*starts), torch.arange(5, 5 + len(starts))
        logits = setup.graphs.run(metadata, token_ids)
        assert logits is not None
        expected = setup.expected(metadata, token_ids)
        assert (logits - expected).square().mean().sqrt() < 0.02 * expected.std()
    # Steps with a shared prefix have other kernels, and so a graph of their own for each size: of 4 and of 2 rows.
    assert setup.recorder.num_recorded == len(graph_sizes(8)) + (2 if rule is ALWAYS else 0)
    assert setup.recorder.num_replayed == (3 if rule is ALWAYS else 5)


def test_logits_outlive_the_next_replay(emulation: Emulation, model: CausalLM) -> None:
    setup = Setup(emulation, model, NEVER)
    first = setup.graphs.run(decodes(40, 33), torch.tensor([5, 6]))
    assert first is not None
    kept = first.clone()
    setup.graphs.run(decodes(41, 34), torch.tensor([7, 8]))
    assert torch.equal(first, kept)


def test_only_batches_of_decodes_that_fit_are_taken(emulation: Emulation, model: CausalLM) -> None:
    setup = Setup(emulation, model, NEVER, max_rows=2)
    assert setup.graphs.run(decodes(40, 33, 50), torch.tensor([5, 6, 7])) is None
    chunk = AttentionMetadata.build([0], [2], [np.array([3], np.int32)], 16)
    assert setup.graphs.run(chunk, torch.tensor([5, 6])) is None
    assert setup.recorder.num_recorded == 0


@pytest.mark.parametrize("most", [1, 2, 5, 8, 37, 100, 256])
def test_every_batch_has_a_size_with_little_padding(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        assert min(size for size in sizes if size >= rows) - rows <= max(7, rows / 4)
    assert len(sizes) <= 20


def engine(
    monkeypatch: pytest.MonkeyPatch, emulation: Emulation, model: CausalLM, **scheduler: int
) -> Engine:
    """An engine whose backend is FlashInfer under emulation, its fused kernels included."""

    def make(name: str, config: AttentionConfig, pool: KVPool) -> FlashInferBackend:
        backend = FlashInferBackend(config, pool, library=emulation.library, cascade=ALWAYS)
        monkeypatch.setattr(fused, "_kernels", lambda x: backend._ops if x.numel() else None)
        return backend

    monkeypatch.setattr(assembly, "make_backend", make)
    tokenizer = embedded_tokenizer()
    loaded = LoadedModel(model, CONFIG, tokenizer, "tiny", tokenizer.eos_token_ids, {})
    config = EngineConfig(kv_cache_tokens=2048, seed=0, radix=RadixConfig(page_size=16))
    return Engine(config, loaded=loaded)


def test_an_engine_gives_the_same_tokens_with_graphs_as_without(
    monkeypatch: pytest.MonkeyPatch, emulation: Emulation, model: CausalLM
) -> None:
    shared = random_prompt(40, seed=1)
    prompts = [shared + random_prompt(5 + n, seed=n) for n in range(5)]
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    eager = engine(monkeypatch, emulation, model)
    expected = token_lists(eager.generate(prompts, params))
    replaying = engine(monkeypatch, emulation, model)
    runner, recorder = replaying.runner, Repeater()
    runner.graphs = DecodeGraphs(model, runner._backend, runner._kv_pool, 8, recorder)
    assert token_lists(replaying.generate(prompts, params)) == expected
    assert recorder.num_recorded + recorder.num_replayed >= 9
    replaying.check()
