"""The answers that the server gives, as they look on the wire."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = [
    "CalledFunction",
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "ChatLogprobs",
    "ChatMessage",
    "ChatTokenLogprob",
    "ChunkChoice",
    "Completion",
    "CompletionChoice",
    "CompletionLogprobs",
    "Delta",
    "Detokenized",
    "Explained",
    "Flushed",
    "FunctionDelta",
    "Health",
    "Model",
    "ModelList",
    "PromptTokensDetails",
    "TokenLogprob",
    "Tokenized",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "Vendor",
]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed, because the prefix cache had them."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Vendor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What only this server tells: the prompt's partition on request, and what max_tokens was cut to."""

    cache: dict[str, Any] | None = None
    max_tokens: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token, its log-probability (at least -9999) and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """A token of an answer and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token of a message."""

    content: list[ChatTokenLogprob]


class CalledFunction(msgspec.Struct, frozen=True):
    """The function to call, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model wants made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """What the model says; `content` is null where it only calls."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One of the `n` answers."""

    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """The answer of `POST /v1/chat/completions`."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    trunkline: Vendor | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    """The function's name, or what a chunk adds to its arguments."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A call that begins, with its id and name, or what a chunk adds to the call at `index`."""

    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message; `content` is null at the start of one that can only call."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk adds to one of the `n` answers."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a chat stream; `usage` is there, and mostly null, where the request asked for it."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    trunkline: Vendor | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists with one entry for each token; a prompt's first token has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One of the continuations, or what a chunk adds to it."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None = None


class Completion(msgspec.Struct, frozen=True):
    """The answer of `POST /v1/completions`, and one event of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"
    trunkline: Vendor | msgspec.UnsetType = msgspec.UNSET


class Model(msgspec.Struct, frozen=True):
    """A name under which the model can be asked for."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "trunkline"
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    """The answer of `GET /v1/models`."""

    data: list[Model]
    object: Literal["list"] = "list"


class Tokenized(msgspec.Struct, frozen=True):
    """The answer of `POST /tokenize`."""

    tokens: list[int]
    pieces: list[str] | None
    count: int
    max_model_len: int


class Detokenized(msgspec.Struct, frozen=True):
    """The answer of `POST /detokenize`."""

    prompt: str


class Health(msgspec.Struct, frozen=True):
    """The answer of the probes."""

    status: str


class Flushed(msgspec.Struct, frozen=True):
    """The answer of `POST /v1/cache/flush`: pages that are free now; pages in use are never among them."""

    pages_freed: int


class Explained(msgspec.Struct, frozen=True):
    """The answer of `GET /v1/cache/explain/{id}`."""

    id: str
    cache: dict[str, Any]
