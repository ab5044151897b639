"""What the contract suite is run on: a backend, the dtype it is given, and how near it has to come."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.attention.steps import Step, make_step
from trunkline.attention import AttentionConfig, KVPool
from trunkline.attention.base import AttentionBackend

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class Subject:
    """One backend under test; kv_dtype: of pages, None as q; head_dims: the sizes it takes, None for all."""

    name: str
    make: Callable[[AttentionConfig, KVPool], AttentionBackend]
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    head_dims: tuple[int, ...] | None = None
    masks: bool = True
    device: str = "cpu"

    def step(self, config: AttentionConfig, mix: Sequence[tuple[int, int]], **options: Any) -> Step:
        """A random step in the subject's dtype, on its device."""
        return make_step(
            config, mix, device=self.device, **({"dtype": self.dtype, "kv_dtype": self.kv_dtype} | options)
        )

    def answer(self, config: AttentionConfig, step: Step, layer: int = 0) -> torch.Tensor:
        """What the backend makes of a step."""
        backend = self.make(config, step.pool)
        backend.plan(step.metadata)
        return backend.forward(layer, step.q, step.k, step.v)

    def check(self, config: AttentionConfig, step: Step, layer: int = 0) -> None:
        """The answer equals dense attention."""
        out = self.answer(config, step, layer)
        assert out.shape == step.q.shape
        assert out.dtype == step.q.dtype
        difference = (out.double().cpu() - step.expected).abs()
        token, head, _ = np.unravel_index(
            int(difference.nan_to_num(torch.inf).argmax()), tuple(difference.shape)
        )
        print(f"{self.name}: largest difference {difference.max():.2e} at token {token}, head {head}")
        assert difference.max() <= TOLERANCE[step.q.dtype]
