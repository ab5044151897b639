"""The requests that the server takes: every field, its type and its range."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from trunkline.runtime.sampling import Constraint, SamplingParams
from trunkline.runtime.sampling.params import MAX_CHOICES, MAX_LOGPROBS

from .fields import Content, LogitBias, Prompts, Stop, StopTokenIds

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerationRequest",
    "Message",
    "RequestBody",
    "TokenizeRequest",
]

INT64_MAX = 2**63 - 1
MAX_MESSAGES = 10_000
SAMPLING_FIELDS = (
    *(
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    ),
    *("logit_bias", "seed", "n", "stop", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("skip_special_tokens", "include_stop_str_in_output"),
)

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1)]
Salt = Annotated[str, Field(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class RequestBody(BaseModel):
    """A request's body; unknown fields are kept apart, those known but not built are refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    not_built: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI's that nothing here implements, each with the values that ask for nothing."""

    @model_validator(mode="after")
    def _refuse_what_is_not_built(self) -> RequestBody:
        for name, harmless in self.not_built.items():
            if self.unknown.get(name) not in (None, *harmless):
                raise _not_built(name)
        return self

    @property
    def unknown(self) -> dict[str, Any]:
        """The fields that nobody knows here."""
        return self.model_extra or {}


class StreamOptions(_Strict):
    """How a stream is written."""

    include_usage: bool = False


class JsonSchemaFormat(_Strict):
    """A JSON schema; `strict` or not, it is kept to."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(_Strict):
    """What the answer must look like: free text, some JSON object, or JSON that a schema accepts."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise _whole(
                "json_schema", 'response_format.json_schema goes with "type": "json_schema", and that with it'
            )
        return self

    def constraint(self) -> Constraint | None:
        """The same for the sampler; None for free text. Raises RequestError for a schema that is too long."""
        if self.type == "text":
            return None
        return Constraint.json_schema(True if self.json_schema is None else self.json_schema.json_schema)


class TrunklineOptions(_Strict):
    """What only this server tells: `cache` asks for the prompt's partition into cached and missed tokens."""

    cache: bool = False


class GenerationRequest(RequestBody):
    """What chat and text completions have in common."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    seed: int | None = Field(default=None, ge=-INT64_MAX - 1, le=INT64_MAX)
    stop: Stop | None = None
    response_format: ResponseFormat | None = None
    top_k: int | None = Field(default=None, ge=-1)
    min_p: Probability | None = None
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=2)
    min_tokens: int | None = Field(default=None, ge=0)
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    cache_salt: Salt | None = None
    user: str | None = None
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    trunkline: TrunklineOptions | None = None

    @model_validator(mode="after")
    def _check_together(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise _whole("stream_options", 'stream_options is only allowed with "stream": true')
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_explanation(self) -> bool:
        return self.trunkline is not None and self.trunkline.cache

    def sampling(self, **more: Any) -> SamplingParams:
        """The sampling options; a field that is absent or null keeps its default."""
        given = {name: value for name in SAMPLING_FIELDS if (value := getattr(self, name)) is not None}
        if self.response_format is not None:
            given["constraint"] = self.response_format.constraint()
        return SamplingParams(**given, **more)


class Message(_Strict):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_tool_calls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name in ("tool_calls", "function_call", "refusal", "audio"):
                if value.get(name):
                    raise _not_built(f".{name}", name)
        return value

    def for_template(self) -> dict[str, str]:
        """The message as chat templates know it."""
        role = "system" if self.role == "developer" else self.role
        more = {"name": self.name, "tool_call_id": self.tool_call_id}
        return {
            "role": role,
            "content": self.content,
            **{key: text for key, text in more.items() if text is not None},
        }


_NO_TOOLS: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
}


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    not_built: ClassVar[dict[str, tuple[Any, ...]]] = _NO_TOOLS

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _check_chat(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise _whole("top_logprobs", 'top_logprobs is only allowed with "logprobs": true')
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise _whole("max_tokens", "max_tokens and max_completion_tokens differ; give only one of them")
        return self

    @property
    def limit(self) -> int | None:
        """New tokens at most."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    not_built: ClassVar[dict[str, tuple[Any, ...]]] = {"suffix": ("",)}

    prompt: Prompts
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool = True
    allow_special_tokens: bool = False

    @model_validator(mode="after")
    def _check_completion(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise _whole("max_tokens", "max_tokens: must be at least 1 where the prompt is not echoed, not 0")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _whole("best_of", f"best_of is only supported where it equals n, {self.n or 1}")
        if len(self.prompt) * (self.n or 1) > MAX_CHOICES:
            raise _whole(
                "n", f"{len(self.prompt)} prompts with n {self.n} are more than {MAX_CHOICES} choices"
            )
        return self


class EmbeddingRequest(RequestBody):
    """`POST /v1/embeddings`, which is refused."""


class TokenizeRequest(RequestBody):
    """`POST /tokenize`: a text, or a conversation in the chat template; `pieces` adds each token's text."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    allow_special_tokens: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    pieces: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise _whole("prompt", "give either prompt or messages")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            raise _whole(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other",
            )
        return self


class DetokenizeRequest(RequestBody):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
    skip_special_tokens: bool = False


def _whole(name: str, message: str) -> PydanticCustomError:
    """An error about how fields go together; its message says it all."""
    return PydanticCustomError("whole_request", "{message}", {"at": name, "message": message})


def _not_built(at: str, what: str | None = None) -> PydanticCustomError:
    """An error about a field that OpenAI knows and nothing here implements."""
    return PydanticCustomError(
        "not_supported", "{message}", {"at": at, "message": f"{what or at} is not supported"}
    )
