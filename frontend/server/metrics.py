"""What Prometheus may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trunkline.runtime.engine.stats import EngineStats

from .record import RequestRecord

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIME_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
GAP_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)

# name → (help, what it is of the engine's statistics)
ENGINE_GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "trunkline_requests_running": ("Choices that are being computed.", lambda stats: stats.num_running),
    "trunkline_requests_queued": ("Choices that wait in the engine.", lambda stats: stats.num_waiting),
    "trunkline_cache_hit_ratio": (
        "Cached prompt tokens of all prompt tokens since the start.",
        lambda stats: stats.num_cached_tokens / max(1, stats.num_prompt_tokens),
    ),
}
ENGINE_COUNTERS: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "trunkline_steps": ("Forward passes.", lambda stats: stats.num_steps),
    "trunkline_prompt_tokens": (
        "Prompt tokens of requests that began.",
        lambda stats: stats.num_prompt_tokens,
    ),
    "trunkline_cached_tokens": (
        "Prompt tokens found in the prefix cache.",
        lambda stats: stats.num_cached_tokens,
    ),
    "trunkline_computed_tokens": (
        "Tokens computed, prompts included.",
        lambda stats: stats.num_computed_tokens,
    ),
    "trunkline_generated_tokens": ("Tokens generated.", lambda stats: stats.num_generated_tokens),
    "trunkline_evicted_pages": (
        "Pages evicted from the prefix cache.",
        lambda stats: stats.num_evicted_pages,
    ),
    "trunkline_preemptions": ("Requests preempted for want of pages.", lambda stats: stats.num_preemptions),
}
PAGE_STATES: dict[str, Callable[[EngineStats], float]] = {
    "free": lambda stats: stats.num_pages_free,
    "evictable": lambda stats: stats.num_pages_evictable,
    "in_use": lambda stats: stats.num_pages_in_use,
}


class Metrics:
    """The server's own counters and histograms, and the engine's numbers as they are when somebody asks.

    Kept in a registry of its own, so that several servers in one process don't mix.
    """

    def __init__(self, stats: Callable[[], EngineStats], num_waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats, num_waiting))
        self._requests = Counter(
            "trunkline_http_requests",
            "HTTP requests by route and how they ended.",
            ("route", "outcome"),
            registry=self._registry,
        )
        self._first_token = self._histogram(
            "time_to_first_token", "From a request's arrival to its first token."
        )
        self._gap = self._histogram("inter_token_latency", "Between tokens of one choice.", GAP_BUCKETS)
        self._whole = self._histogram(
            "request_duration", "From a request's arrival to the end of its answer."
        )

    def first_token(self, seconds: float) -> None:
        """A request has waited this long for its first token."""
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A choice has waited this long for more."""
        self._gap.observe(seconds)

    def ended(self, route: str, outcome: str, record: RequestRecord, seconds: float) -> None:
        """A request is over; its duration counts where tokens came."""
        self._requests.labels(route, outcome).inc()
        if record.num_output_tokens:
            self._whole.observe(seconds)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...] = TIME_BUCKETS) -> Histogram:
        return Histogram(f"trunkline_{name}_seconds", help, registry=self._registry, buckets=buckets)


class _EngineCollector(Collector):
    """Reads the engine's last statistics on every scrape."""

    def __init__(self, stats: Callable[[], EngineStats], num_waiting: Callable[[], int]) -> None:
        self._stats = stats
        self._num_waiting = num_waiting

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        waiting = GaugeMetricFamily(
            "trunkline_requests_waiting", "HTTP requests that wait for their first token."
        )
        waiting.add_metric([], self._num_waiting())
        yield waiting
        for name, (help, read) in ENGINE_GAUGES.items():
            yield GaugeMetricFamily(name, help, value=read(stats))
        for name, (help, read) in ENGINE_COUNTERS.items():
            yield CounterMetricFamily(name, help, value=read(stats))
        pages = GaugeMetricFamily("trunkline_pages", "Pages of the KV pool by state.", labels=("state",))
        for state, read in PAGE_STATES.items():
            pages.add_metric([state], read(stats))
        yield pages
