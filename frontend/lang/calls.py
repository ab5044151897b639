"""The two calls of the model: `gen` and `select` as a backend answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .backends import Served
from .content import Content, Generated
from .parts import Gen, Select, merged_options
from .records import Meta
from .running import Run
from .scoring import decide

__all__ = ["choose", "generate"]


async def generate(run: Run, content: Content, call: Gen) -> tuple[Any, Meta]:
    """Lets the model go on and appends what it says; returns the variable's value and what is known of it."""
    options = merged_options(run.options, call.options)
    listener = run.on_text
    answered = await run.backend.generate(
        content.prompt(run.number),
        options,
        None if listener is None else lambda text: listener(call.name, text),
    )
    run.served += answered.served
    first = answered.answers[0]
    content.append(Generated(first.text, first.token_ids))
    value = first.text if "n" not in options else [answer.text for answer in answered.answers]
    return value, _meta(answered.served, finish_reason=first.finish_reason, logprobs=first.logprobs)


async def choose(run: Run, content: Content, call: Select) -> tuple[str, Meta]:
    """Lets the model choose and appends the choice; equal choices are scored once."""
    distinct = list(dict.fromkeys(call.choices))
    scored = await run.backend.score(
        content.prompt(run.number), distinct, unconditional=call.method == "unconditional_normalized"
    )
    run.served += scored.served
    decision = decide(call.method, scored.choices)
    choice = distinct[decision.index]
    content.append(choice)
    if run.on_text is not None:
        run.on_text(call.name, choice)
    by_choice = dict(zip(distinct, decision.scores, strict=True))
    return choice, _meta(scored.served, scores=tuple(by_choice[choice] for choice in call.choices))


def _meta(served: Sequence[Served], **known: Any) -> Meta:
    return Meta(
        num_prompt_tokens=sum(one.num_prompt_tokens for one in served),
        num_cached_tokens=sum(one.num_cached_tokens for one in served),
        num_output_tokens=sum(one.num_output_tokens for one in served),
        **known,
    )
