"""The engine: requests in, text out, one step at a time."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trunkline.radix import DEFAULT_NAMESPACE, Namespace
from trunkline.radix.tokens import Int32Array
from trunkline.runtime.errors import RequestError
from trunkline.runtime.loading import LoadedModel, load_model
from trunkline.runtime.sampling import SamplingParams, TokenLogprobs, derive_seed
from trunkline.scheduler import Request, SchedulePlan, StepResult, TokenOutput

from .assembly import Assembly, assemble
from .batch import run_batch
from .config import EngineConfig
from .launched_step import BrokenStep, RunnerOutput, StepHandle
from .output_text import OutputText
from .outputs import Generation, RequestOutput, explained
from .prompts import Prompt, encode_prompt, limit_output
from .rows import SamplingState
from .stats import EngineStats
from .stops import StopAutomaton

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Live:
    """One choice of a request while it runs."""

    id: str
    index: int
    params: SamplingParams
    num_prompt_tokens: int
    text: OutputText
    num_output_tokens: int = 0
    scored: list[TokenLogprobs] = field(default_factory=list)
    explanation: dict[str, Any] | None = None


class Engine:
    """A model behind a scheduler and a radix tree of KV pages, in this process and thread.

    `add_request` queues, `step` computes and returns what it brought, `abort` takes back; `generate` and `stream`
    do the three for you. Not thread-safe.

    Args:
        config: the settings; the embedded model with defaults if absent.
        loaded: a model that is loaded already, used instead of `config.model`.
        clock: seconds on a clock that never runs backwards.

    Raises:
        ConfigError: settings that contradict each other or the model.
        LoadError: the model can't be had.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        loaded: LoadedModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or EngineConfig()
        loaded = loaded or load_model(
            self.config.model, self.config.dtype, self.config.device, self.config.quantization
        )
        parts: Assembly = assemble(self.config, loaded)
        self.tokenizer = loaded.tokenizer
        self.model_name = loaded.name
        self.max_model_len = parts.max_model_len
        self.backend_name = parts.backend_name
        self.vocab_size = loaded.config.vocab_size
        self.cache = parts.cache
        self.scheduler = parts.scheduler
        self.runner = parts.runner
        self._launcher = parts.launcher
        self._backing = parts.backing
        self._overlap = parts.overlap
        self._in_flight: deque[tuple[SchedulePlan, StepHandle]] = deque()
        self._eos_token_ids = frozenset(loaded.eos_token_ids)
        self._clock = clock
        self._seeds = np.random.default_rng(self.config.seed)
        self._numbers = itertools.count(1)
        self._live: dict[str, _Live] = {}
        self._choices: dict[str, list[str]] = {}
        self._unclaimed: deque[RequestOutput] = deque()
        self._unexplained: dict[str, Namespace] = {}

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        id: str | None = None,
        priority: int = 0,
        namespace: Namespace = DEFAULT_NAMESPACE,
        explain: bool = False,
    ) -> str:
        """Queues a prompt (text, or token ids) and returns the request's id.

        With `params.n` > 1 each choice runs as a request of its own behind the same prompt. With `explain` the first
        output of each choice says why its prompt was cached as far as it was.

        Raises:
            RequestError: what can't be served as it stands; nothing is queued.
        """
        params = params or SamplingParams()
        params.validate_for(self.vocab_size)
        if params.constraint is not None:
            self.runner.grammars.check(params.constraint)
        number = next(self._numbers)
        name = id if id is not None else f"request-{number}"
        if name in self._choices:
            raise RequestError(f"a request with id {name!r} is running", "id")
        # With the number, since a step may still be computing for an aborted request of the same name.
        requests = self._requests(f"{name}#{number}", prompt, params, priority, namespace)
        stops = StopAutomaton(params.stops)
        keys = self._choices[name] = []
        try:
            for index, request in enumerate(requests):
                self.scheduler.add(request, request.arrival_time)
                text = OutputText(self.tokenizer, params, stops)
                self._live[request.id] = _Live(name, index, params, len(request.prompt), text)
                keys.append(request.id)
                if explain:
                    self._unexplained[request.id] = namespace
        except BaseException:
            self.abort(name)
            raise
        return name

    def step(self) -> list[RequestOutput]:
        """Computes one step and returns what it brought, in the order in which it was scheduled.

        Where steps overlap, the next one is running already when this returns.
        """
        outputs = [*self._unclaimed, *self._advance()]
        self._unclaimed.clear()
        return outputs

    def abort(self, id: str) -> None:
        """Ends a request; an unknown or finished one is left alone."""
        for key in self._choices.pop(id, ()):
            if self._live.pop(key, None) is not None:
                self._unexplained.pop(key, None)
                self.scheduler.abort(key, self._clock())

    @property
    def has_work(self) -> bool:
        """True while a request is queued, runs or has output that nobody has fetched."""
        return bool(self._live or self._unclaimed or self.scheduler.has_work)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> Iterator[RequestOutput]:
        """Queues a prompt and yields its output as it comes; leaving the iterator early aborts the request."""
        return self.follow({self.add_request(prompt, params, priority=priority, namespace=namespace)})

    def follow(self, names: Collection[str]) -> Iterator[RequestOutput]:
        """Steps until the named requests are finished and yields their output; that of others waits for `step`.

        Leaving the iterator early aborts the named requests.
        """
        waiting = set(names)
        try:
            while waiting:
                mine = [output for output in self._unclaimed if output.id in waiting]
                if not mine:
                    self._unclaimed.extend(self._advance())
                    continue
                self._unclaimed = deque(output for output in self._unclaimed if output.id not in waiting)
                waiting -= {output.id for output in mine if output.last}
                yield from mine
        finally:
            for name in names:
                self.abort(name)
            while self._in_flight and not self._live:
                self._land()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        progress: bool = False,
    ) -> list[Generation]:
        """Completes prompts and returns them in order.

        Args:
            prompts: one prompt or many.
            params: for all of them, or one a prompt.
            progress: show a bar on stderr.

        Raises:
            RequestError: a prompt or its parameters can't be served; then none is computed.
        """
        return run_batch(self, prompts, params, namespace=namespace, progress=progress)

    def encode(self, prompt: Prompt) -> Int32Array:
        """The token ids [tokens] int32 that a prompt stands for; raises RequestError as `add_request` does."""
        return encode_prompt(self.tokenizer, prompt, self.vocab_size)

    def chat_prompt(self, messages: Sequence[dict[str, Any]], **template_options: Any) -> list[int]:
        """The token ids of a conversation in the model's chat template, ready for an answer.

        Raises ChatTemplateError where the model has no template, or the template refuses the messages.
        """
        return [int(token) for token in self.tokenizer.render_chat(messages, **template_options).ids]

    def flush_cache(self, namespace: Namespace | None = None) -> int:
        """Drops every cached page that no request holds, in one namespace or all; returns how many."""
        return self.cache.flush((namespace[0], namespace[1]) if namespace is not None else None)

    def cache_tree(self) -> dict[str, Any]:
        """The radix tree and its counters as JSON-ready values, parents before children."""
        return self.cache.snapshot()

    def back_pages(self) -> bool:
        """Has memory put behind a few of the KV pages that come next; false where enough pages have theirs.

        For spare time: a request that first writes a page without memory waits until the operating system finds some.
        """
        return self._backing.advance()

    def stats(self) -> EngineStats:
        """Pages and requests now, and what was counted since the start. O(1)."""
        pool, counted, cached = self.cache.pool, self.scheduler.stats(), self.cache.stats()
        return EngineStats(
            num_running=counted.now_running,
            num_waiting=counted.now_waiting + counted.now_preempted + counted.now_parked,
            num_pages_free=pool.num_free,
            num_pages_evictable=pool.num_evictable,
            num_pages_in_use=pool.num_in_use,
            num_steps=counted.num_steps,
            num_prompt_tokens=counted.num_prompt_tokens,
            num_cached_tokens=counted.num_cached_tokens,
            num_generated_tokens=counted.num_output_tokens,
            num_computed_tokens=counted.num_computed_tokens,
            num_evicted_pages=cached.num_evicted_pages,
            num_preemptions=counted.num_preemptions,
        )

    def check(self) -> None:
        """Recomputes every invariant of pool, tree and scheduler; raises with the state where one is broken."""
        self.cache.check()
        self.scheduler.check()

    def _requests(
        self, name: str, prompt: Prompt, params: SamplingParams, priority: int, namespace: Namespace
    ) -> list[Request]:
        """The scheduler's requests, one a choice. Raises RequestError for a prompt that can't be served."""
        tokens = self.encode(prompt)
        max_new_tokens = limit_output(len(tokens), params, self.max_model_len)
        seed = params.seed if params.seed is not None else int(self._seeds.integers(2**63))
        ending, now = self._ending_token_ids(params), self._clock()
        return [
            Request(
                id=f"{name}/{index}",
                prompt=tokens,
                max_new_tokens=max_new_tokens,
                # A constraint may end the answer earlier; else the sampler draws no stop token until then.
                min_new_tokens=0 if params.constraint is not None else params.min_tokens,
                stop_token_ids=ending,
                priority=priority,
                namespace=namespace,
                arrival_time=now,
                logits_from=params.logits_from,
                is_sequential=params.is_sequential,
                payload=SamplingState(params, derive_seed(seed, index), ending),
            )
            for index in range(params.n)
        ]

    def _advance(self) -> list[RequestOutput]:
        if not self._in_flight:
            self._launch()
        if self._overlap and self.scheduler.may_schedule:
            self._launch()
        return self._land()

    def _launch(self) -> None:
        """Plans the next step and begins it."""
        plan = self.scheduler.schedule(self._clock())
        if self._unexplained:
            self._explain(plan)
        handle: StepHandle
        try:
            handle = self._launcher.launch(plan)
        except Exception as error:
            handle = BrokenStep(error)
        self._in_flight.append((plan, handle))

    def _land(self) -> list[RequestOutput]:
        """Waits for the oldest step in flight and takes in what it brought."""
        plan, handle = self._in_flight[0]
        result = self._result(plan, handle)
        tokens = self.scheduler.update(plan, result.step, self._clock())
        self._in_flight.popleft()
        for key, (position, entries) in result.prompt_logprobs.items():
            if (live := self._live.get(key)) is not None:
                first = live.params.logits_from or 0
                live.scored[position - first :] = entries  # a resumed request scores some positions again
        return [self._emit(output, result) for output in tokens if output.id in self._live]

    def _explain(self, plan: SchedulePlan) -> None:
        """Explains the requests that this plan admits, while the tree is as it was when they were matched."""
        for request in plan.scheduled:
            namespace = self._unexplained.pop(request.id, None)
            if namespace is not None:
                prompt = request.history[: request.num_prompt_tokens]
                explanation = self.cache.explain(prompt, namespace)
                self._live[request.id].explanation = explained(explanation, request.start)

    @staticmethod
    def _result(plan: SchedulePlan, handle: StepHandle) -> RunnerOutput:
        """A step's result; a step that breaks fails its requests, not the engine."""
        try:
            return handle.result()
        except Exception as error:
            if not plan.scheduled:
                raise
            logger.exception("step %d failed with %d requests", plan.step, len(plan.scheduled))
            reason = f"the step failed: {type(error).__name__}"
            return RunnerOutput(
                StepResult(tokens={}, failed={request.id: reason for request in plan.scheduled})
            )

    def _emit(self, output: TokenOutput, result: RunnerOutput) -> RequestOutput:
        live = self._live[output.id]
        hidden = output.stop_token is not None and not live.params.include_stop_str_in_output
        delta = live.text.append(output.tokens[:-1] if hidden else output.tokens)
        scored: tuple[TokenLogprobs | None, ...] | None = None
        if live.num_output_tokens == 0 and live.scored:
            unscored = (
                () if live.params.prompt_logprobs_start else (None,)
            )  # nothing stands before the first token
            scored = (*unscored, *live.scored)
        live.num_output_tokens += len(output.tokens)
        text = delta.text
        finish_reason: str | None = output.finish_reason
        stop: str | int | None = output.stop_token
        if delta.stop is None and finish_reason is not None:
            delta = live.text.finish()
            text += delta.text
        if delta.stop is not None:
            finish_reason, stop = "stop", delta.stop
            self.scheduler.finish(output.id, "stop", self._clock())
        last = finish_reason is not None and self._forget(output.id, live)
        entry = result.logprobs.get(output.id)
        return RequestOutput(
            id=live.id,
            index=live.index,
            text=text,
            token_ids=output.tokens,
            finish_reason=finish_reason,
            last=last,
            stop=stop,
            num_prompt_tokens=live.num_prompt_tokens,
            num_cached_tokens=output.num_cached_tokens,
            num_output_tokens=live.num_output_tokens,
            num_preemptions=output.num_preemptions,
            logprobs=(entry,) if entry is not None and output.tokens else None,
            prompt_logprobs=scored,
            error=output.error,
            explanation=live.explanation if live.num_output_tokens == len(output.tokens) else None,
        )

    def _forget(self, key: str, live: _Live) -> bool:
        """Drops a finished choice; true when it was its request's last."""
        del self._live[key]
        self._unexplained.pop(key, None)
        keys = self._choices[live.id]
        keys.remove(key)
        if not keys:
            del self._choices[live.id]
        return not keys

    def _ending_token_ids(self, params: SamplingParams) -> frozenset[int]:
        own = frozenset(params.stop_token_ids)
        return own if params.ignore_eos else own | self._eos_token_ids
