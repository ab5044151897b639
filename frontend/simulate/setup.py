"""One simulated server: model, machine, cache and scheduler; and how variants of it are named."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args

import yaml

from trunkline.errors import ConfigError
from trunkline.radix import PagePool, PrefixCache, RadixConfig
from trunkline.scheduler.config import PolicyName, SchedulerConfig
from trunkline.scheduler.hardware import ModelShape
from trunkline.scheduler.roofline import Roofline, kv_pages
from trunkline.scheduler.scheduler import Scheduler
from trunkline.scheduler.simulation_report import SimulationReport
from trunkline.scheduler.simulator import Progress, Simulation
from trunkline.scheduler.workload import Workload

_WORDS: Mapping[str, Mapping[str, Any]] = {
    "static": {"batching": "static", "enable_chunked_prefill": False},
    "continuous": {"batching": "continuous", "enable_chunked_prefill": False},
    "chunked": {"batching": "continuous", "enable_chunked_prefill": True},
    "no-cache": {"enable_prefix_caching": False},
}


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything about a simulated server that decides what it does.

    Args:
        roofline: the model on its device, calibrated or not; priced with pages of its page size.
        kv_tokens: KV cache size in tokens; None: what the device's memory leaves beside the weights.
        utilisation: share of the device's memory that may be used.
        asked_tokens: most tokens that each client asks for; None: exactly what it will get.
    """

    roofline: Roofline
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    eviction_policy: str = "lru"
    kv_tokens: int | None = None
    utilisation: float = 0.9
    asked_tokens: int | None = None

    @property
    def model(self) -> ModelShape:
        return self.roofline.model

    @property
    def num_pages(self) -> int:
        """Pages of the KV cache. Raises ConfigError when there is room for none."""
        size = RadixConfig(page_size=self.roofline.page_size).page_size
        if self.kv_tokens is None:
            return kv_pages(self.model, self.roofline.device, size, self.utilisation)
        if self.kv_tokens < size:
            raise ConfigError(f"a KV cache of {self.kv_tokens} tokens is smaller than a page of {size}")
        return self.kv_tokens // size

    def simulate(self, workload: Workload, progress: Progress | None = None) -> SimulationReport:
        """Serve the workload with a fresh cache and scheduler."""
        pool = PagePool(self.num_pages, self.roofline.page_size)
        cache = PrefixCache(pool, RadixConfig(page_size=pool.page_size, eviction_policy=self.eviction_policy))
        scheduler = Scheduler(cache, self.scheduler)
        return Simulation(workload, scheduler, pool, self.roofline, self.asked_tokens).run(progress)

    def describe(self) -> dict[str, Any]:
        """All settings as plain values, ready for JSON."""
        return {
            "model": asdict(self.model),
            "device": asdict(self.roofline.device),
            "page_size": self.roofline.page_size,
            "num_pages": self.num_pages,
            "eviction_policy": self.eviction_policy,
            "asked_tokens": self.asked_tokens,
            "scheduler": asdict(self.scheduler),
        }

    def variant(self, text: str) -> "Setup":
        """This setup with what `text` changes: parts joined by `+`, see `docs/simulate.md`.

        A part is a scheduling policy, one of `static`, `continuous`, `chunked`, `no-cache`, or `name=value`
        with a field of `SchedulerConfig`, `eviction_policy` or `page_size`.
        """
        setup = self
        for part in text.split("+"):
            part = part.strip()
            if part in get_args(PolicyName):
                setup = setup.changed({"scheduling_policy": part})
            elif part in _WORDS:
                setup = setup.changed(_WORDS[part])
            elif "=" in part:
                setup = setup.changed(parse_assignment(part))
            else:
                known = ", ".join([*get_args(PolicyName), *_WORDS])
                raise ConfigError(f"variant {part!r} is unknown; known: {known}, or name=value")
        return setup

    def changed(self, values: Mapping[str, Any]) -> "Setup":
        """This setup with scheduler fields, `eviction_policy` or `page_size` replaced."""
        rest = dict(values)
        setup = self
        if "eviction_policy" in rest:
            setup = replace(setup, eviction_policy=str(rest.pop("eviction_policy")))
        if "page_size" in rest:
            size = rest.pop("page_size")
            if not isinstance(size, int):
                raise ConfigError(f"page_size must be an integer, not {size!r}")
            setup = replace(setup, roofline=Roofline(setup.model, setup.roofline.device, size))
        known = {name.name: getattr(setup.scheduler, name.name) for name in fields(SchedulerConfig)}
        return replace(setup, scheduler=SchedulerConfig.from_mapping(known | rest))


def default_page_size(workload: Workload) -> int:
    """The engine's 16 tokens, or more where the trace knows about sharing in larger blocks only (at most 256)."""
    block_size = workload.block_size or 1
    return max(16, min(256, block_size & -block_size))


def parse_assignment(text: str) -> dict[str, Any]:
    """`name=value` with the value read as YAML: numbers, true, false and null are what they look like."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"expected name=value, got {text!r}")
    try:
        return {name.strip().replace("-", "_"): yaml.safe_load(value)}
    except yaml.YAMLError as error:
        raise ConfigError(f"the value in {text!r} is not YAML: {error}") from error
