"""Linear layers with weights in the blocks of GGUF files, of four or eight bits, natively on CPUs."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from . import native, structs
from .packed_linear import STRIP, NativeLinear, gate_by_turns, native_bias, whole_tiles

BLOCK = 32  # weights along a row that share a scale
FEW_ROWS = 6  # linear.h: few_block_rows, at level amx
_LINE, _HALF = 64, 2


@dataclass(frozen=True, slots=True)
class _Kind:
    """A block is `scales` halves (scale, then minimum), then `words` of four bytes. number: linear.h."""

    number: int
    scales: int
    words: int

    @property
    def block_bytes(self) -> int:
        return self.scales * _HALF + self.words * 4


_KINDS = {
    "Q4_0": _Kind(structs.Q4_0, 1, 4),
    "Q4_1": _Kind(structs.Q4_1, 2, 4),
    "Q8_0": _Kind(structs.Q8_0, 1, 8),
}
BLOCK_KINDS = frozenset(_KINDS)


class BlockLinear(NativeLinear):
    """Weights as a GGUF file has them: 4.5 (Q4_0), 5 (Q4_1) or 8.5 bits (Q8_0) a piece, never inflated.

    x is rounded in blocks of 32, bfloat16 to 8 bits (as llama.cpp does) and float32 to 15, and products are whole
    numbers. With tiles of bfloat16 (amx) that holds for up to FEW_ROWS rows: more are multiplied as bfloat16, by weights
    that are rounded to it in the cache. So there a row has the same bits in all batches on the same side of that number.
    """

    def __init__(
        self,
        kind: str,
        blocks: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
        level: str | None = None,
    ) -> None:
        """Packs uint8 [out, bytes of a row], as stored in a file; out is a multiple of STRIP where it is gated."""
        stored = _KINDS[kind]
        packed = _packed(stored, gate_by_turns(blocks) if gated else blocks, native.library(level).width)
        biases = native_bias(bias, gated)
        linear = structs.Linear(
            weight=packed.data_ptr(),
            bias=None if biases is None else biases.data_ptr(),
            in_features=blocks.shape[1] // stored.block_bytes * BLOCK,
            out_features=len(blocks),
            words=packed.shape[1] * packed.shape[2] // 4,
            kind=stored.number,
            gated=gated,
        )
        super().__init__(level, linear, packed, biases)
        self.num_bytes = packed.nbytes
        """What the weight takes."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See NativeLinear; x is float32 or bfloat16."""
        return self._multiply(whole_tiles(x), len(x))

    def rows(self, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The weight's rows [count, in] in float32 or bfloat16, by int64 indices [count], which are not checked."""
        indices = indices.contiguous()
        out = torch.empty(len(indices), self.native.in_features, dtype=dtype)
        self._library.block_rows(
            structs.BlockRows(
                linear=self.native,
                rows=indices.data_ptr(),
                out=out.data_ptr(),
                count=len(indices),
                storage=structs.STORAGE[dtype],
            )
        )
        return out


def _packed(kind: _Kind, blocks: torch.Tensor, width: int) -> torch.Tensor:
    """uint8 [strips, groups, bytes of a group]: a group is `width` outputs, lane by lane; see blocks.h."""
    padded = F.pad(blocks, (0, 0, 0, -len(blocks) % STRIP))
    by_block = padded.view(-1, width, blocks.shape[1] // kind.block_bytes, kind.block_bytes)
    groups, _, num_blocks, _ = by_block.shape
    scale_bytes, word_bytes = num_blocks * kind.scales * width * _HALF, num_blocks * kind.words * width * 4
    words_at = -(-scale_bytes // _LINE) * _LINE
    packed = torch.zeros(groups, words_at + -(-word_bytes // _LINE) * _LINE, dtype=torch.uint8)
    # group, lane, block, element, byte  ->  group, block, element, lane, byte
    halves = by_block[..., : kind.scales * _HALF].reshape(groups, width, num_blocks, kind.scales, _HALF)
    packed[:, :scale_bytes] = halves.permute(0, 2, 3, 1, 4).reshape(groups, -1)
    words = by_block[..., kind.scales * _HALF :].reshape(groups, width, num_blocks, kind.words, 4)
    if kind.number == structs.Q8_0:
        words = words ^ 128  # bytes with a sign are stored with 128 added
    packed[:, words_at : words_at + word_bytes] = words.permute(0, 2, 3, 1, 4).reshape(groups, -1)
    return packed.view(-1, STRIP // width, packed.shape[1])
