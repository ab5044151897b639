"""Programs on a Trunkline server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .backends import Scores, Served
from .content import Prompt
from .errors import UnsupportedError
from .parts import Options
from .remote import PLAIN, OpenAIBackend
from .scoring import ChoiceLogprobs

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["TrunklineServer"]

CHOICES_AT_ONCE = 32


class TrunklineServer(OpenAIBackend):
    """A server started with `trunkline serve`: all that programs can ask for.

    Args:
        url: of the server, `http://127.0.0.1:8000`.

    The others are those of `OpenAIBackend`.
    """

    kind = "Trunkline servers"
    extra_options = frozenset(Options.__annotations__) - PLAIN
    chat_options: frozenset[str] = frozenset()

    def __init__(self, url: str, model: str | None = None, **settings: Any) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        super().__init__(f"{self.url}/v1", model, **settings)

    async def score(self, prompt: Prompt, choices: Sequence[str], *, unconditional: bool) -> Scores:
        """See `Backend.score`: each choice's own tokens behind the prompt's, scored by an echo.

        The prompt before them is computed once, or taken from the cache.
        Raises UnsupportedError for unconditional scores of a model whose texts begin with no token of their own.
        """
        async with self._turn(prompt) as client:
            model = await self._model_name(client)
            prefix = await self._tokenize(client, self._whole_prompt(prompt))
            options = [
                await self._tokenize(client, {"prompt": choice, "add_special_tokens": False})
                for choice in choices
            ]
            values, served = await self._values(client, model, prefix or await self._nothing(client), options)
            bare: list[tuple[float, ...] | None] = [None] * len(options)
            if unconditional:
                free, more = await self._values(client, model, await self._nothing(client), options)
                bare, served = list(free), [*served, *more]
        scored = [
            ChoiceLogprobs(tuple(ids), value, free)
            for ids, value, free in zip(options, values, bare, strict=True)
        ]
        return Scores(tuple(scored), tuple(served))

    def _begun_fields(self, prompt: Prompt) -> dict[str, Any]:
        return {"continue_final_message": True}

    def _whole_prompt(self, prompt: Prompt) -> dict[str, Any]:
        if prompt.messages is None:
            return {"prompt": prompt.text}
        messages = list(prompt.messages)
        if not prompt.begun:
            return {"messages": messages}
        messages.append({"role": "assistant", "content": prompt.begun})
        return {"messages": messages, "continue_final_message": True}

    async def _values(
        self, client: AsyncOpenAI, model: str, prefix: list[int], options: Sequence[list[int]]
    ) -> tuple[list[tuple[float, ...]], list[Served]]:
        """Log-probabilities of each option's tokens behind the prefix, some options a request."""
        values: list[tuple[float, ...]] = []
        served = []
        for start in range(0, len(options), CHOICES_AT_ONCE):
            some = options[start : start + CHOICES_AT_ONCE]
            answered = await client.completions.create(
                model=model,
                prompt=[prefix + option for option in some],
                echo=True,
                logprobs=0,
                max_tokens=0,
                temperature=0.0,
                extra_body={"prompt_logprobs_start": len(prefix)},
            )
            for option, choice in zip(some, answered.choices, strict=True):
                assert choice.logprobs is not None, "the server was asked for log-probabilities"
                own = (choice.logprobs.token_logprobs or [])[-len(option) :]
                values.append(tuple(float(value) for value in own))
            usage = answered.usage
            details = usage.prompt_tokens_details if usage is not None else None
            cached = (details.cached_tokens if details is not None else None) or 0
            served.append(Served(usage.prompt_tokens if usage is not None else 0, cached, 0))
        return values, served

    async def _nothing(self, client: AsyncOpenAI) -> list[int]:
        ids = await self._tokenize(client, {"prompt": ""})
        if not ids:
            raise UnsupportedError(
                "scoring without a prompt is not supported by this server: its model's texts begin with no token"
            )
        return ids

    async def _tokenize(self, client: AsyncOpenAI, body: Mapping[str, Any]) -> list[int]:
        answered: Any = await client.post(
            f"{self.url}/tokenize", cast_to=object, body={"model": self.model, **body}
        )
        return [int(id) for id in answered["tokens"]]
