"""What the scheduler counts."""

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start, and gauges of the moment (those that begin with "now").

    Prompt tokens of first admissions are `num_cached_tokens` (prefix hits) or computed. After a preemption,
    `num_reread_tokens` were found in the cache again, `num_swapped_in_tokens` came back from host memory and
    `num_recomputed_tokens` are computed a second time; none of them is a prefix hit.
    """

    num_steps: int = 0
    num_admitted: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_swapped_out: int = 0
    num_reread_tokens: int = 0
    num_swapped_in_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_stopped: int = 0
    num_length: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    candidates_examined: int = 0
    num_parkings: int = 0
    match_updates: int = 0
    now_waiting: int = 0
    now_preempted: int = 0
    now_parked: int = 0
    now_running: int = 0
    now_in_flight_pages: int = 0
    now_host_pages: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the admitted prompts' tokens that came from the cache, 0.0 before the first."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0
