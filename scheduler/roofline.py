"""How long a step takes on a machine that isn't here: a roofline over a model's shape and a device's rates.

Every part of a step is bounded by arithmetic or by memory traffic, whichever is slower (Williams, Waterman
and Patterson, "Roofline", 2009). The parts run one after another: the weights' matrix products, attention,
the all-reduces of tensor parallelism, the launches, and the copies of pages.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from trunkline.errors import ConfigError

from .hardware import Device, ModelShape
from .plan import SchedulePlan


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step asks of the machine.

    Args:
        tokens: tokens computed.
        sampled: rows of logits.
        attended: for each computed token the positions it attends to, summed.
        context: keys and values read: for each request its tokens up to the end of its chunk, summed.
        copied_pages: pages copied on the device (copy-on-write).
        swapped_pages: pages copied to or from the host.
    """

    tokens: int
    sampled: int
    attended: int
    context: int
    copied_pages: int = 0
    swapped_pages: int = 0

    @classmethod
    def of(cls, plan: SchedulePlan) -> "StepLoad":
        """The load of a plan. O(requests in it)."""
        return cls.of_chunks(
            ((len(request.tokens), request.start, request.samples) for request in plan.scheduled),
            copied_pages=len(plan.page_copies),
            swapped_pages=len(plan.swap_out) + len(plan.swap_in),
        )

    @classmethod
    def of_chunks(
        cls, chunks: Iterable[tuple[int, int, bool]], copied_pages: int = 0, swapped_pages: int = 0
    ) -> "StepLoad":
        """The load of chunks `(number of tokens, position of the first, samples)`, causal attention."""
        tokens = sampled = attended = context = 0
        for length, start, samples in chunks:
            tokens += length
            sampled += samples
            attended += length * start + length * (length + 1) // 2
            context += start + length
        return cls(tokens, sampled, attended, context, copied_pages, swapped_pages)

    def later(self, num_steps: int) -> "StepLoad":
        """The load of the same requests' decode step `num_steps` steps later: longer by a token each."""
        grown = num_steps * self.tokens
        return StepLoad(self.tokens, self.sampled, self.attended + grown, self.context + grown)


class CostModel(Protocol):
    """Anything that prices a step; tests use ones that count on their fingers."""

    def step_seconds(self, load: StepLoad) -> float:
        """Seconds that a step with this load takes."""
        ...


@dataclass(frozen=True, slots=True)
class StepParts:
    """The ideal seconds of a step, peak rates assumed; what a calibration scales (see `Roofline.parts`)."""

    linear_arithmetic: float
    linear_memory: float
    attention_arithmetic: float
    attention_memory: float
    other: float
    launches: int


class Roofline:
    """Seconds per step of `model` on `device`.

    Not modelled: ragged tiles of small matrix products, imbalance between devices, overlap of copies with
    compute, and sampling. All of them are what a calibration's efficiencies and overheads absorb on
    average.
    """

    def __init__(self, model: ModelShape, device: Device, page_size: int = 16) -> None:
        self.model = model
        self.device = device
        self.page_size = page_size
        count = device.count
        head = model.vocab_size * model.hidden_size
        self._token_flops = 2.0 * model.num_layers * model.layer_parameters / count
        self._row_flops = 2.0 * head / count
        read = (model.num_layers * model.layer_parameters + head) * model.weight_bytes
        self._weight_seconds = read / count / device.bandwidth
        self._attended_flops = 4.0 * model.num_layers * -(-model.num_heads // count) * model.head_dim
        self._kv_token_bytes = model.kv_token_bytes(count)
        self._reduces = 2 * model.num_layers if count > 1 else 0
        self._reduce_token_seconds = (
            2.0 * (count - 1) / count * model.hidden_size * 2.0 / device.link_bandwidth
        )

    def parts(self, load: StepLoad) -> StepParts:
        """The step's parts in seconds at peak rates; a calibration fits the factors that real steps need."""
        device = self.device
        reduce = self._reduces * (load.tokens * self._reduce_token_seconds + device.link_latency)
        page_bytes = self.page_size * self._kv_token_bytes
        copies = 2 * load.copied_pages * page_bytes / device.bandwidth
        swaps = load.swapped_pages * page_bytes / device.host_bandwidth
        return StepParts(
            linear_arithmetic=(load.tokens * self._token_flops + load.sampled * self._row_flops)
            / device.flops,
            linear_memory=self._weight_seconds,
            attention_arithmetic=load.attended * self._attended_flops / device.flops,
            attention_memory=(load.context + load.tokens) * self._kv_token_bytes / device.bandwidth,
            other=(reduce if load.tokens else 0.0) + copies + swaps,
            launches=self.model.num_layers,
        )

    def step_seconds(self, load: StepLoad) -> float:
        """Seconds that a step with this load takes; copies and overhead alone when it computes nothing."""
        device = self.device
        parts = self.parts(load)
        if not load.tokens:
            return device.step_overhead + parts.other
        arithmetic, memory = 1.0 / device.flops_efficiency, 1.0 / device.bandwidth_efficiency
        return (
            max(parts.linear_arithmetic * arithmetic, parts.linear_memory * memory)
            + max(parts.attention_arithmetic * arithmetic, parts.attention_memory * memory)
            + parts.other
            + parts.launches * device.layer_overhead
            + device.step_overhead
        )

    def with_device(self, device: Device) -> "Roofline":
        """The same model on another device, for instance one with calibrated efficiencies."""
        return Roofline(self.model, device, self.page_size)


def kv_pages(model: ModelShape, device: Device, page_size: int, utilisation: float = 0.9) -> int:
    """Pages of keys and values that fit beside the weights.

    (memory x devices x utilisation - weights) / bytes of a page, over all devices together.

    Raises:
        ConfigError: the weights alone do not fit; says how much there is and how much they need.
    """
    if not 0 < utilisation <= 1:
        raise ConfigError(f"memory utilisation must be in (0, 1], got {utilisation}")
    usable = device.memory * device.count * utilisation
    left = usable - model.stored_bytes
    pages = int(left // (page_size * model.kv_token_bytes(device.count) * device.count)) if left > 0 else 0
    if pages < 1:
        raise ConfigError(
            f"{model.name} needs {model.stored_bytes / 1e9:.1f} GB for its weights; {device.count} x "
            f"{device.name} at {utilisation:.0%} have {usable / 1e9:.1f} GB, "
            "which leaves no page for keys and values"
        )
    return pages


def scaled(model: ModelShape, weight_bits: float | None = None, kv_bits: float | None = None) -> ModelShape:
    """The model with its weights or its keys and values stored in another number of bits."""
    return replace(
        model,
        weight_bytes=model.weight_bytes if weight_bits is None else weight_bits / 8,
        kv_bytes=model.kv_bytes if kv_bits is None else kv_bits / 8,
    )
