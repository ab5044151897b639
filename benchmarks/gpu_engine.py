"""A model of random weights in an engine: decode steps eager and as graphs, and the workloads' throughput."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.workloads import Turn, Workload, build
from trunkline import Engine, EngineConfig, SamplingParams
from trunkline.runtime.loading import LoadedModel, Tokenizer
from trunkline.runtime.loading.tokenizer_spec import TokenizerSpec
from trunkline.runtime.models import ModelConfig, build_model
from trunkline.runtime.models.rope import RopeConfig

__all__ = ["LLAMA_8B", "TINY", "Throughput", "decode_seconds", "make_engine", "throughput", "word_tokenizer"]

LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_positions=8192,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=500000.0),
)
TINY = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=1,
    head_dim=64,
    max_positions=2048,
)


@dataclass(frozen=True)
class Throughput:
    """One run of a workload: tokens and seconds, all requests together."""

    seconds: float
    prompt: int
    cached: int
    output: int
    steps: int


def make_engine(config: ModelConfig, device: torch.device, backend: str, kv_cache_tokens: int) -> Engine:
    """An engine on random bf16 weights; prompts and answers are token ids."""
    model = build_model(config, torch.bfloat16, device)
    generator = torch.Generator(device).manual_seed(0)
    model.load_weights(
        (name, torch.ones(shape) if len(shape) == 1 else _normal(shape, device, generator))
        for name, shape in model.weight_shapes.items()
    )
    loaded = LoadedModel(model, config, word_tokenizer(config.vocab_size), "random", frozenset(), {})
    settings = EngineConfig(
        attention_backend=backend,
        kv_cache_tokens=kv_cache_tokens,
        device=str(device),
        dtype="bfloat16",
        seed=0,
    )
    return Engine(settings, loaded=loaded)


def decode_seconds(engine: Engine, num_requests: int, prompt_length: int, num_steps: int) -> float:
    """Seconds of one step in which each of the requests decodes a token."""
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 8, ignore_eos=True)
    for number in range(num_requests):
        ids = [(number * 7919 + place * 31) % (engine.vocab_size - 1) + 1 for place in range(prompt_length)]
        engine.add_request(ids, params)
    started = {}
    while len(started) < num_requests:
        started |= {output.id: True for output in engine.step()}
    begin = time.perf_counter()
    for _ in range(num_steps):
        engine.step()
    elapsed = (time.perf_counter() - begin) / num_steps
    for name in started:
        engine.abort(name)
    while engine.has_work:
        engine.step()
    return elapsed


def throughput(engine: Engine, name: str, seed: int, scale: float) -> Throughput:
    """Runs a workload of benchmarks/workloads.py, `scale` times its clients, closed loop."""
    workload = build(name, seed)
    clients = workload.clients * max(1, round(scale))
    waiting = [_client(workload, turns, number) for number, turns in enumerate(clients)]
    running: dict[str, tuple[Iterator[tuple[list[int], int]], list[int]]] = {}
    prompt = cached = output = steps = 0
    begin = time.perf_counter()

    def send(client: Iterator[tuple[list[int], int]]) -> None:
        nonlocal prompt
        try:
            ids, count = next(client)
        except StopIteration:
            return
        prompt += len(ids)
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        running[engine.add_request(ids, params)] = client, []

    concurrency = min(len(waiting), max(1, round(workload.concurrency * scale)))
    while waiting or running:
        while waiting and len(running) < concurrency:
            send(waiting.pop(0))
        steps += 1
        for part in engine.step():
            output += len(part.token_ids)
            client, _ = running[part.id]
            if part.finish_reason is not None:
                cached += part.num_cached_tokens
                del running[part.id]
                send(client)
    return Throughput(time.perf_counter() - begin, prompt, cached, output, steps)


def _client(workload: Workload, turns: list[Turn], number: int) -> Iterator[tuple[list[int], int]]:
    """The prompts of a client's turns; with a system prompt each goes on from the one before."""
    history = _ids(workload.system) if workload.system is not None else []
    for turn in turns:
        # Copies of a client ask different things behind the same beginning.
        ids = history + _ids(turn.text) + [1 + number % 97]
        yield ids, turn.num_output
        history = ids if workload.system is not None else []


def _ids(text: str) -> list[int]:
    return [2 + sum(word.encode()) * 31 % 500 for word in text.split()]


def _normal(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, 0.02, generator=generator)


def word_tokenizer(vocab_size: int) -> Tokenizer:
    """A word for each id: enough for an engine that is given ids."""
    model = {"type": "WordLevel", "vocab": {f"w{id}": id for id in range(vocab_size)}, "unk_token": "w0"}
    definition = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": model,
    }
    return Tokenizer(TokenizerSpec(definition, control=frozenset(), eos_ids=frozenset()))
