"""Weights that stay in the quantised blocks of a GGUF file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from trunkline.attention.block_linear import BLOCK_KINDS, BlockLinear
from trunkline.attention.packed_linear import STRIP


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeight:
    """A matrix of one of BLOCK_KINDS: `kind` as GGUF names it, `data` uint8 [rows, bytes of a row]."""

    kind: str
    data: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        weights, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        return len(self.data), self.data.shape[1] // num_bytes * weights

    def dense(self) -> torch.Tensor:
        """The numbers, float32 [rows, cols]."""
        # Several rows at once take half the time, and blocks don't mind.
        rows = self.data.view(len(self.data) // math.gcd(len(self.data), 16), -1)
        return torch.from_numpy(dequantize(rows.numpy(), GGMLQuantizationType[self.kind])).view(self.shape)


Weight = torch.Tensor | BlockWeight
"""A checkpoint's tensor: numbers, or the blocks that stand for them."""


def dense(weight: Weight) -> torch.Tensor:
    """The numbers of a weight."""
    return weight.dense() if isinstance(weight, BlockWeight) else weight


def block_linear(
    parts: Sequence[Weight], bias: torch.Tensor | None = None, gated: bool = False
) -> BlockLinear | None:
    """The layer of parts that lie end to end, None where they are not blocks of one kind (or no kernel fits)."""
    blocks = [part for part in parts if isinstance(part, BlockWeight)]
    kinds = {part.kind for part in blocks}
    if len(blocks) < len(parts) or len(kinds) > 1 or (gated and 2 * len(blocks[0].data) % STRIP):
        return None
    return BlockLinear(kinds.pop(), torch.cat([part.data for part in blocks]), bias, gated=gated)


__all__ = ["BLOCK_KINDS", "BlockWeight", "Weight", "block_linear", "dense"]
