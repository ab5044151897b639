"""All layers of a decoder in one native call."""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from . import structs
from .cpu import CpuBackend
from .packed_linear import NativeLinear

PHASES = ("norm", "linear", "rotary", "attention", "head")  # decoder.cpp


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A layer's weights; `head_norm` [num_heads + num_kv_heads, head_dim] where q and k are normalised."""

    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    head_norm: torch.Tensor | None
    qkv: NativeLinear
    out: NativeLinear
    gate_up: NativeLinear
    down: NativeLinear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A llama-like decoder behind its embedding; cos and sin are float32 [positions, head_dim / 2]."""

    layers: Sequence[LayerWeights]
    norm: torch.Tensor
    head: NativeLinear
    cos: torch.Tensor
    sin: torch.Tensor
    norm_eps: float


class NativeDecoder:
    """The layers, the last norm and the output projection over one backend's pages.

    Gives what the layers give one by one, without waking threads for each of their steps.
    """

    def __init__(self, weights: DecoderWeights, backend: CpuBackend) -> None:
        self._weights = weights
        self._library = backend.library
        self.seconds = dict.fromkeys(PHASES, 0.0)
        """Where the time of all calls went."""
        config = backend.config
        jobs = [backend.layer(index, weights.norm.dtype) for index in range(len(weights.layers))]
        layers = (structs.DecoderLayer * len(jobs))(
            *(_layer(layer, job) for layer, job in zip(weights.layers, jobs, strict=True))
        )
        self._hidden = weights.norm.shape[0]
        head = weights.head.native
        self._vocab_size: int = head.out_features
        model = structs.DecoderModel(
            layers=ctypes.addressof(layers),
            norm=weights.norm.data_ptr(),
            cos=weights.cos.data_ptr(),
            sin=weights.sin.data_ptr(),
            head=head,
            attention=jobs[0],
            num_layers=len(layers),
            hidden=self._hidden,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=weights.norm_eps,
        )
        self._decoder = ctypes.c_void_p(self._library.decoder_new(model))
        weakref.finalize(self, self._library.decoder_free, self._decoder)

    def forward(self, backend: CpuBackend, embeddings: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Float32 logits [n, vocab] of rows [n] (int64) of the step that the backend has planned.

        `embeddings` [tokens, hidden] are overwritten. The backend is the one that this was made for; it is not
        kept, so that it can go when its engine goes.
        """
        metadata = backend.metadata
        logits = torch.empty(len(rows), self._vocab_size)
        seconds = (ctypes.c_double * len(PHASES))()
        self._library.decoder_run(
            self._decoder,
            structs.DecoderStep(
                attention=backend.attention,
                residual=embeddings.data_ptr(),
                positions=metadata.positions.ctypes.data,
                slots=metadata.slot_mapping.ctypes.data,
                rows=rows.data_ptr(),
                logits=logits.data_ptr(),
                seconds=ctypes.addressof(seconds),
                tokens=len(embeddings),
                num_rows=len(rows),
                num_threads=torch.get_num_threads(),
            ),
        )
        for phase, spent in zip(PHASES, seconds, strict=True):
            self.seconds[phase] += spent
        return logits


def _layer(weights: LayerWeights, job: structs.Layer) -> structs.DecoderLayer:
    return structs.DecoderLayer(
        attention_norm=weights.attention_norm.data_ptr(),
        mlp_norm=weights.mlp_norm.data_ptr(),
        head_norm=None if weights.head_norm is None else weights.head_norm.data_ptr(),
        pages=job.pages,
        qkv=weights.qkv.native,
        out=weights.out.native,
        gate_up=weights.gate_up.native,
        down=weights.down.native,
        window=job.window,
    )
