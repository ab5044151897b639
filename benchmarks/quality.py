"""What a dtype, a quantisation or an int8 KV cache does to a model's answers, against float32.

    python -m benchmarks.quality bfloat16 bfloat16+int8          # the embedded model
    python -m benchmarks.quality bfloat16+int8 --conversations 8 --prompts 8

Each variant is DTYPE, DTYPE+QUANTIZATION or either with +kv-int8. The text is people's conversations (Open
Assistant) in the model's chat template. Columns: perplexity over every token; the share of places where the
likeliest token, given the same text, is float32's; of greedy answers to the first questions, the share that
equals float32's to the end, and after how many tokens the others leave it (median); the model's tensors in
MB.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import math
import multiprocessing
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from trunkline import Engine, EngineConfig, SamplingParams
from trunkline.runtime.loading import load_model

TEXT = Path(__file__).parent / "data" / "oasst_conversations_95.jsonl.gz"
BASELINE = "float32"
MIN_KV_TOKENS = 16384


@dataclass
class Measured:
    """Of one variant: each scored token's log-probability, the likeliest token at its place, greedy answers."""

    logprobs: list[float]
    likeliest: list[int]
    answers: list[list[int]]
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="+", metavar="DTYPE[+QUANTIZATION][+kv-int8]")
    parser.add_argument("--model", help="directory, .gguf file or hub id; the embedded model if absent")
    parser.add_argument("--conversations", type=int, default=95, help="conversations that are scored")
    parser.add_argument("--max-tokens", type=int, default=1024, help="tokens scored of each at most")
    parser.add_argument("--prompts", type=int, default=64, help="first questions that are answered greedily")
    parser.add_argument("--output", type=int, default=128, help="tokens of each answer")
    options = parser.parse_args()
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        conversations = [json.loads(line) for line in file]
    # A process each: only what one variant holds is counted.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        variants = [BASELINE, *options.variants]
        results = processes.map(measure, variants, [conversations] * len(variants), [options] * len(variants))
        report(zip(variants, results, strict=True), options.output)


def report(results: Iterable[tuple[str, Measured]], output: int) -> None:
    """Prints the table as its rows come; the first is what the others are compared with."""
    results = iter(results)
    name, expected = next(results)
    print(f"{len(expected.logprobs):,} tokens scored, {len(expected.answers)} x {output} generated\n")
    print("| variant | perplexity | same likeliest token | same answer | leaves it after | MB |")
    print("|---|---|---|---|---|---|")
    for variant, found in chain([(name, expected)], results):
        print(row(variant, found, expected), flush=True)


def measure(
    variant: str, conversations: Sequence[list[dict[str, str]]], options: argparse.Namespace
) -> Measured:
    """Loads the model as the variant says, scores the conversations and answers their first questions."""
    weights, _, kv_cache_dtype = variant.partition("+kv-")
    dtype, _, quantization = weights.partition("+")
    tokens = max(MIN_KV_TOKENS, 2 * (options.max_tokens + options.output))
    loaded = load_model(options.model, dtype, quantization=quantization or None)
    megabytes = tensor_bytes() / 1e6
    config = EngineConfig(kv_cache_tokens=tokens, kv_cache_dtype=kv_cache_dtype or "auto")
    engine = Engine(config, loaded=loaded)
    texts = [engine.chat_prompt(messages)[: options.max_tokens] for messages in conversations]
    scoring = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    scored = [
        entry
        for generation in engine.generate(texts[: options.conversations], scoring)
        for entry in generation.prompt_logprobs or ()
        if entry is not None
    ]
    questions = [engine.chat_prompt(messages[:1]) for messages in conversations[: options.prompts]]
    answering = SamplingParams(max_tokens=options.output, temperature=0.0, ignore_eos=True)
    answers = [generation.token_ids for generation in engine.generate(questions, answering)]
    return Measured(
        [entry.token.logprob for entry in scored],
        [entry.top[0].token_id for entry in scored],
        answers,
        megabytes,
    )


def tensor_bytes() -> int:
    """What all tensors of this process hold, each memory once."""
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return sum(
        {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values()
    )


def row(variant: str, found: Measured, expected: Measured) -> str:
    """One line of the table."""
    perplexity = math.exp(-statistics.fmean(found.logprobs))
    agreed = statistics.fmean(a == b for a, b in zip(found.likeliest, expected.likeliest, strict=True))
    lengths = [common_length(a, b) for a, b in zip(found.answers, expected.answers, strict=True)]
    left = [length for length, answer in zip(lengths, expected.answers, strict=True) if length < len(answer)]
    after = f"{statistics.median(left):.0f} tokens" if left else "-"
    same = 1 - len(left) / len(lengths)
    return f"| {variant} | {perplexity:.3f} | {agreed:.1%} | {same:.0%} | {after} | {found.megabytes:.0f} |"


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two answers begin alike with."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


if __name__ == "__main__":
    main()
