"""A step while it is being planned."""

from dataclasses import dataclass, field

import numpy as np

from trunkline.radix.tokens import Int32Array

from .cost import StepBudget, attended_positions
from .plan import PENDING_TOKEN, ScheduledRequest, SchedulePlan, empty_pairs
from .state import RequestState


@dataclass(slots=True)
class StepDraft:
    """Who computes how many tokens, and which pages are copied before; `freeze` makes the plan of it.

    `returned_host_pages` are free again once the step is executed. `stuck` are requests that need a page
    when all that could be freed are; nothing but pinned pages leads there.

    A draft that `is_ahead` is made while another plan is in flight. Of those who run then, `num_done` have nothing
    left to compute. It preempts nobody; where it would have to, `is_blocked` says so.
    """

    step: int
    budget: StepBudget
    is_ahead: bool = False
    is_blocked: bool = False
    num_done: int = 0
    chosen: dict[RequestState, int] = field(default_factory=dict)
    admitted: list[RequestState] = field(default_factory=list)
    preempted: list[RequestState] = field(default_factory=list)
    page_copies: list[tuple[int, int]] = field(default_factory=list)
    swap_out: list[Int32Array] = field(default_factory=list)
    swap_in: list[Int32Array] = field(default_factory=list)
    returned_host_pages: list[Int32Array] = field(default_factory=list)
    stuck: list[RequestState] = field(default_factory=list)
    num_partial: int = 0

    def choose_prompt(self, state: RequestState, count: int) -> None:
        """Compute `count` of the known tokens of a request that is not just decoding."""
        self.chosen[state] = count
        self.budget.take_prompt(state.num_computed, count)
        if state.num_computed + count < state.num_tokens:
            self.num_partial += 1

    def drop(self, state: RequestState) -> None:
        """Take a request out that lost its pages."""
        count = self.chosen.pop(state, 0)
        self.budget.tokens += count
        if count and state.num_computed + count < state.num_tokens:
            self.num_partial -= 1

    def freeze(self, now: float) -> SchedulePlan:
        """The plan, of which the requests' counts now take account; O(requests in it)."""
        scheduled = []
        num_tokens = num_attended = 0
        for state, count in self.chosen.items():
            start, known = state.num_computed, state.num_tokens
            end = start + count
            request, lease = state.request, state.lease
            assert lease is not None
            num_tokens += count
            num_attended += end if count == 1 else attended_positions(start, count)
            pending = end > state.num_known
            if pending:
                state.write(start, PENDING_TOKEN)
            buffer = state.buffer
            scheduled.append(
                ScheduledRequest(
                    state.id,
                    request.payload,
                    buffer[start:end],
                    start,
                    lease.pages,
                    end == known,
                    state.num_prompt,
                    known - state.num_prompt,
                    buffer[:known],
                    None if request.logits_from is None else state.logits_from,
                    pending,
                )
            )
            state.num_computed = end
            if end == known:
                state.num_tokens = known + 1
        return SchedulePlan(
            step=self.step,
            scheduled=tuple(scheduled),
            page_copies=np.array(self.page_copies, dtype=np.int32) if self.page_copies else empty_pairs(),
            swap_out=np.concatenate(self.swap_out) if self.swap_out else empty_pairs(),
            swap_in=np.concatenate(self.swap_in) if self.swap_in else empty_pairs(),
            preempted=tuple(state.id for state in self.preempted),
            num_tokens=num_tokens,
            num_attended=num_attended,
            scheduled_at=now,
        )
