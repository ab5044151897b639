"""Programs on a server that speaks OpenAI's protocol: any such endpoint, or Trunkline's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .backends import Answer, Answers, Scores, Served
from .content import Prompt
from .errors import BackendError, LangError, UnsupportedError
from .ordering import Turnstile
from .parts import DEFAULT_MAX_TOKENS, Options

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["Connection", "OpenAIBackend"]

PLAIN = frozenset(
    {"max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop", "n"}
)


class Connection:
    """The client of one event loop, the requests that wait for it, and how many runs use it."""

    def __init__(self, client: AsyncOpenAI, limit: int) -> None:
        self.client = client
        self.turnstile = Turnstile(limit)
        self.num_users = 0


class OpenAIBackend:
    """An OpenAI-compatible endpoint: plain text goes to its completions, conversations to its chat completions.

    What the protocol doesn't have is refused by name, with UnsupportedError: `select`, an answer that is begun
    for the model, and options of `gen` outside of OpenAI's. `json_schema` is asked for in conversations, strictly.

    Args:
        base_url: where the protocol begins, usually ending in /v1.
        model: its name there; None takes the first that the endpoint lists.
        api_key: sent as a bearer token.
        max_concurrency: requests under way at a time; those that share a prefix go together.
        timeout: seconds for one request.
        max_retries: how often a request that failed on its way is sent again.
    """

    kind = "OpenAI-compatible endpoints"
    extra_options: frozenset[str] = frozenset({"logprobs", "json_schema"})
    chat_options: frozenset[str] = frozenset({"json_schema"})

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str = "none",
        max_concurrency: int = 64,
        timeout: float = 600.0,
        max_retries: int = 2,
    ) -> None:
        self.base_url = base_url
        self.model = model
        self._api_key = api_key
        self._max_concurrency = max_concurrency
        self._timeout = timeout
        self._max_retries = max_retries
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            self._connections[loop] = Connection(self._client(), self._max_concurrency)
        self._connections[loop].num_users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        connection = self._connections[loop]
        connection.num_users -= 1
        if not connection.num_users:
            del self._connections[loop]
            await connection.client.close()

    async def generate(
        self, prompt: Prompt, options: Options, on_text: Callable[[str], None] | None = None
    ) -> Answers:
        """See `Backend.generate`; raises UnsupportedError, and BackendError for what the endpoint answered."""
        fields = self._fields(prompt, options)
        async with self._turn(prompt) as client:
            fields["model"] = await self._model_name(client)
            create = client.completions.create if prompt.messages is None else client.chat.completions.create
            if on_text is None or options.get("n", 1) > 1:
                answered = await create(**fields)
                if on_text is not None:
                    on_text(_text(answered.choices[0]))
                return _whole(answered)
            stream = await create(**fields, stream=True, stream_options={"include_usage": True})
            async with stream:
                return await _streamed(stream, on_text)

    async def score(self, prompt: Prompt, choices: Sequence[str], *, unconditional: bool) -> Scores:
        """Refused: the protocol has no log-probabilities of a given text."""
        raise UnsupportedError(
            "select is not supported by OpenAI-compatible endpoints; a Trunkline server has it"
        )

    def ended(self, run: int, *, more: bool) -> None:
        """A server keeps what it likes."""

    @property
    def connection(self) -> Connection:
        """The connection of the running event loop."""
        return self._connections[asyncio.get_running_loop()]

    def _begun_fields(self, prompt: Prompt) -> dict[str, Any]:
        """What asks for an answer to be gone on with."""
        raise UnsupportedError(
            "an assistant message with text before gen is not supported by OpenAI-compatible endpoints"
        )

    def _fields(self, prompt: Prompt, options: Options) -> dict[str, Any]:
        for name in options:
            if name not in PLAIN and name not in self.extra_options:
                raise UnsupportedError(f"gen option {name} is not supported by {self.kind}")
            if name in self.chat_options and prompt.messages is None:
                raise UnsupportedError(f"gen option {name} is not supported by {self.kind} for plain text")
        fields: dict[str, Any] = {name: value for name, value in options.items() if name in PLAIN}
        fields.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
        if isinstance(fields.get("stop"), tuple):
            fields["stop"] = list(fields["stop"])
        extra = {name: value for name, value in options.items() if name not in PLAIN and name != "logprobs"}
        if "json_schema" in extra:
            extra["response_format"] = _response_format(extra.pop("json_schema"))
        logprobs = options.get("logprobs")
        if prompt.messages is None:
            fields["prompt"] = prompt.text
            if logprobs is not None:
                fields["logprobs"] = logprobs
        else:
            fields["messages"] = list(prompt.messages)
            fields["max_completion_tokens"] = fields.pop("max_tokens")
            if logprobs is not None:
                fields |= {"logprobs": True, "top_logprobs": logprobs}
            if prompt.begun:
                fields["messages"].append({"role": "assistant", "content": prompt.begun})
                extra |= self._begun_fields(prompt)
        return fields | ({"extra_body": extra} if extra else {})

    @asynccontextmanager
    async def _turn(self, prompt: Prompt) -> AsyncIterator[AsyncOpenAI]:
        """The client, when it is this prompt's turn; what goes wrong inside becomes a BackendError."""
        import openai

        key = prompt.text if prompt.messages is None else repr(prompt.messages) + prompt.begun
        connection = self.connection
        async with connection.turnstile.turn(key.encode(), prompt.follows):
            try:
                yield connection.client
            except openai.APIStatusError as error:
                raise BackendError(
                    f"{self.base_url} answered {error.status_code}: {_reason(error)}", error.status_code
                ) from None
            except openai.APITimeoutError:
                raise BackendError(f"{self.base_url} did not answer within {self._timeout:g} s") from None
            except openai.APIConnectionError as error:
                raise BackendError(f"{self.base_url} can't be reached: {error.__cause__ or error}") from None
            except openai.APIError as error:
                raise BackendError(f"{self.base_url} broke off: {error.message}") from None

    async def _model_name(self, client: AsyncOpenAI) -> str:
        if self.model is None:
            listed = (await client.models.list()).data
            if not listed:
                raise BackendError(f"{self.base_url} lists no model; name one")
            self.model = listed[0].id
        return self.model

    def _client(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise LangError(f"remote backends need {error.name}: pip install 'trunkline[remote]'") from None
        return AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key,
            timeout=self._timeout,
            max_retries=self._max_retries,
        )


def _response_format(schema: Any) -> dict[str, Any]:
    """Asks for JSON by a schema as `gen` takes it; raises RequestError for what is none."""
    from trunkline.runtime.sampling import Constraint

    checked = json.loads(Constraint.json_schema(schema).source)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": checked, "strict": True}}


def _whole(answered: Any) -> Answers:
    answers = tuple(
        Answer(_text(choice), choice.finish_reason or "length", logprobs=_logprobs(choice))
        for choice in answered.choices
    )
    return Answers(answers, (_served(answered.usage),))


async def _streamed(stream: Any, on_text: Callable[[str], None]) -> Answers:
    text, finish_reason, usage = "", None, None
    logprobs: list[Any] = []
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            logprobs += _logprobs(choice) or ()
            finish_reason = choice.finish_reason or finish_reason
            if piece:
                text += piece
                on_text(piece)
    if finish_reason is None:
        raise BackendError("the stream ended before the answer did")
    return Answers((Answer(text, finish_reason, logprobs=tuple(logprobs) or None),), (_served(usage),))


def _text(choice: Any) -> str:
    text = choice.text if hasattr(choice, "text") else choice.message.content
    return str(text or "")


def _logprobs(choice: Any) -> tuple[Any, ...] | None:
    """The protocol's own entries: pairs of token and log-probability for plain text, objects in a chat."""
    found = getattr(choice, "logprobs", None)
    if found is None:
        return None
    if getattr(found, "content", None) is not None:
        return tuple(found.content)
    return tuple(zip(found.tokens or (), found.token_logprobs or (), strict=True))


def _served(usage: Any) -> Served:
    if usage is None:
        return Served(0, 0, 0)
    details = getattr(usage, "prompt_tokens_details", None)
    return Served(usage.prompt_tokens, getattr(details, "cached_tokens", None) or 0, usage.completion_tokens)


def _reason(error: Any) -> str:
    body = error.body
    if isinstance(body, Mapping) and "message" in body:
        return str(body["message"])
    return " ".join(str(error.message).split())[:300]
