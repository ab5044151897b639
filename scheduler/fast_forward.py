"""Steps that are the same decodes again, which a simulation need not plan one by one."""

from collections.abc import Sequence

from .config import SchedulerConfig
from .plan import SchedulePlan


class FastForward:
    """Tells how many steps after a plan can be skipped so that nobody could tell afterwards.

    When everybody alive decodes, the steps that follow compute one more token each until somebody ends,
    arrives, or needs a page. Until then a step changes nothing but lengths: no page is taken, given back, stored
    or evicted. So the update may bring all their tokens at once, and the next plan, which computes those tokens,
    leaves the scheduler and the cache exactly as the skipped plans would have.

    Not with a latency target or swapping, which learn from the size and time of each plan. Where it is possible
    (`is_possible`), then, nobody needs to be told how long a step took.
    """

    def __init__(self, config: SchedulerConfig, page_size: int) -> None:
        self._page_size = page_size
        self._max_tokens = config.max_num_batched_tokens
        self._max_chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self.is_possible = config.target_itl_ms is None and config.preemption_mode == "recompute"

    def num_alike(self, plan: SchedulePlan, tokens_left: Sequence[int]) -> int:
        """How many steps after `plan` are the same again, if nobody arrives and everybody alive is in it.

        Args:
            tokens_left: for each scheduled request the tokens it has yet to sample, this plan's included.
        """
        if not self.is_possible or plan.preempted or len(plan.page_copies):
            return 0
        size = self._page_size
        most = min(self._max_chunk, self._max_tokens // len(plan.scheduled)) - 1
        for request, left in zip(plan.scheduled, tokens_left, strict=True):
            computed = request.start + len(request.tokens)
            if not request.samples or not request.num_output_tokens:
                return 0
            # The plan behind the skipped ones samples, too: it must neither end the request nor need a page.
            most = min(most, left - 2, -computed % size - 1)
            if most <= 0:
                return 0
        return most
