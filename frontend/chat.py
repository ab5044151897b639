"""`trunkline chat`: a conversation in the terminal that says what the cache saved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from trunkline.errors import TrunklineError
from trunkline.runtime.loading import Transcripts

if TYPE_CHECKING:
    from trunkline.runtime.engine import Engine
    from trunkline.runtime.sampling import SamplingParams

__all__ = ["converse"]

HELP = "/reset starts over, /quit or end of input leaves."


def converse(
    engine: Engine, params: SamplingParams, system: str | None, lines: Iterable[str], console: Console
) -> None:
    """Answers each line in turn; a turn that fails is taken back and the conversation goes on."""
    transcripts = Transcripts()
    opening = [{"role": "system", "content": system}] if system is not None else []
    messages = list(opening)
    for line in lines:
        text = line.strip()
        if not text:
            continue
        if text in ("/quit", "/exit"):
            return
        if text == "/reset":
            messages = list(opening)
            console.print("[dim]The conversation starts anew.[/dim]")
            continue
        if text.startswith("/"):
            console.print(f"[dim]{text.split()[0]} is no command here. {HELP}[/dim]", highlight=False)
            continue
        messages.append({"role": "user", "content": text})
        try:
            reply = _answer(engine, params, messages, transcripts, console)
        except TrunklineError as error:
            messages.pop()
            console.print(f"[red]{error}[/red]", highlight=False)
            continue
        messages.append({"role": "assistant", "content": reply})


def _answer(
    engine: Engine,
    params: SamplingParams,
    messages: list[dict[str, str]],
    transcripts: Transcripts,
    console: Console,
) -> str:
    """Streams one answer and, after it, one line on tokens and cache."""
    prompt = engine.tokenizer.render_chat(messages, transcripts=transcripts)
    reply, tokens = "", prompt.ids.tolist()
    for output in engine.stream(prompt.ids, params):
        reply += output.text
        tokens.extend(output.token_ids)
        console.print(output.text, end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    if output.finish_reason == "stop":
        tokens.pop()  # the token that ended the answer is the template's to write again
    transcripts.remember(prompt.sealed + reply, tokens)
    ending = "" if output.finish_reason == "stop" else f", ended by {output.error or output.finish_reason}"
    console.print(
        f"[dim]{output.num_cached_tokens} of {output.num_prompt_tokens} prompt tokens from the cache, "
        f"{output.num_output_tokens} generated{ending}[/dim]",
        highlight=False,
    )
    return reply
