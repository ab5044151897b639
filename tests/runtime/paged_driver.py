"""The least engine that runs a model: shuffled pages, chunked prompts, greedy tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from trunkline.attention import AttentionBackend, AttentionMetadata, KVPool, make_backend
from trunkline.runtime.models import CausalLM


@dataclass
class Running:
    """One request: known tokens, how many are computed, its pages, the logits of each computed position."""

    tokens: list[int]
    num_tokens_wanted: int
    pages: np.ndarray
    num_computed: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)


class PagedDriver:
    """Runs sequences through paged attention in steps of at most `budget` tokens; free slots hold NaN."""

    def __init__(
        self, model: CausalLM, backend: str = "torch", page_size: int = 8, num_pages: int = 128, seed: int = 0
    ) -> None:
        config = model.config.attention_config(page_size)
        self.model = model
        self.page_size = page_size
        self.pool = KVPool(config, num_pages, model.dtype)
        self.pool.data.fill_(torch.nan)
        self.backend: AttentionBackend = make_backend(backend, config, self.pool)
        self._free = np.random.default_rng(seed).permutation(np.arange(1, num_pages + 1)).astype(np.int32)

    def greedy(self, prompts: Sequence[Sequence[int]], num_tokens: int, budget: int) -> list[Running]:
        """Generates `num_tokens` for every prompt, all in one batch, the last one uncomputed."""
        running = [self._start(list(prompt), num_tokens) for prompt in prompts]
        while pending := [s for s in running if len(s.tokens) < s.num_tokens_wanted]:
            self._step(pending, budget)
        return running

    def _start(self, prompt: list[int], num_tokens: int) -> Running:
        count = -(-(len(prompt) + num_tokens) // self.page_size)
        pages, self._free = np.split(self._free, [count])
        return Running(prompt, len(prompt) + num_tokens, pages)

    def _step(self, pending: list[Running], budget: int) -> None:
        chunks: list[tuple[Running, list[int]]] = []
        for sequence in pending:
            chunk = sequence.tokens[sequence.num_computed :][:budget]
            budget -= len(chunk)
            if chunk:
                chunks.append((sequence, chunk))
        step = AttentionMetadata.build(
            [s.num_computed for s, _ in chunks],
            [len(chunk) for _, chunk in chunks],
            [s.pages for s, _ in chunks],
            self.page_size,
        )
        self.backend.plan(step)
        token_ids = torch.tensor([token for _, chunk in chunks for token in chunk])
        rows = torch.arange(len(token_ids))
        logits = self.model.forward(token_ids, self.backend, rows)
        for (sequence, chunk), part in zip(chunks, logits.split([len(c) for _, c in chunks]), strict=True):
            sequence.num_computed += len(chunk)
            sequence.logits.append(part)
            if sequence.num_computed == len(sequence.tokens):
                sequence.tokens.append(int(part[-1].argmax()))
