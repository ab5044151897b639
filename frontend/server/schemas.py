"""The requests that the server takes: every field, its type and its range."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from trunkline.runtime.sampling import Constraint, SamplingParams
from trunkline.runtime.sampling.constraint import MAX_SOURCE
from trunkline.runtime.sampling.params import MAX_CHOICES, MAX_LOGPROBS

from .errors import shown
from .fields import LogitBias, Prompts, Stop, StopTokenIds
from .messages import Message
from .schema_parts import RequestBody, ResponseFormat, StreamOptions, TrunklineOptions, whole
from .tool_calls import Calling
from .tools import ToolChoiceField, Tools

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerationRequest",
    "TokenizeRequest",
]

INT64_MAX = 2**63 - 1
MAX_MESSAGES = 10_000
MAX_TEXTS = 10_000
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
Source = Annotated[str, Field(min_length=1, max_length=MAX_SOURCE)]


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
    regex: Source | None = None
    ebnf: Source | None = None
    choices: list[Source] | None = Field(default=None, min_length=1, max_length=MAX_TEXTS)
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
            raise whole("stream_options", 'stream_options is only allowed with "stream": true')
        exclusive = [*self.constraining, *(["ignore_eos"] if self.ignore_eos else [])]
        if len(exclusive) > 1:
            raise whole(exclusive[0], f"{exclusive[0]} and {exclusive[1]} exclude each other")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_explanation(self) -> bool:
        return self.trunkline is not None and self.trunkline.cache

    @property
    def constraining(self) -> list[str]:
        """The fields that say what the answer must look like: one at most, once the request is checked."""
        given = [name for name in ("regex", "ebnf", "choices") if getattr(self, name) is not None]
        if self.response_format is not None and self.response_format.type != "text":
            given.append("response_format")
        return given

    def constraint(self) -> Constraint | None:
        """What the answer must look like; raises RequestError for a source that is too long."""
        if self.regex is not None:
            return Constraint.regex(self.regex)
        if self.ebnf is not None:
            return Constraint.ebnf(self.ebnf)
        if self.choices is not None:
            return Constraint.choices(self.choices)
        return self.response_format.constraint() if self.response_format is not None else None

    def explained(self, reason: str) -> tuple[str, str]:
        """The field that is at fault where the engine refused the constraint for a reason, and what to say."""
        name = self.constraining[0]
        return name, f"{name}: {reason}"

    def sampling(self, **more: Any) -> SamplingParams:
        """The sampling options; a field that is absent or null keeps its default."""
        given = {name: value for name in SAMPLING_FIELDS if (value := getattr(self, name)) is not None}
        return SamplingParams(**given, constraint=self.constraint(), **more)


_NOT_IN_CHAT: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
}


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    not_built: ClassVar[dict[str, tuple[Any, ...]]] = _NOT_IN_CHAT

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    continue_final_message: bool = False
    tools: Tools | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise whole("top_logprobs", 'top_logprobs is only allowed with "logprobs": true')
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise whole("max_tokens", "max_tokens and max_completion_tokens differ; give only one of them")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> ChatRequest:
        choice = self.tool_choice
        if choice is not None and choice.mode in ("required", "named") and not self.tools:
            raise whole("tool_choice", "tool_choice needs tools to choose from")
        known = [tool.function.name for tool in self.tools or ()]
        if choice is not None and choice.mode == "named" and choice.name not in known:
            raise whole("tool_choice", f"tool_choice: there is no tool {shown(choice.name)} among tools")
        if self.calling is not None and self.calling.must:
            for name in ("stop", "stop_token_ids", "continue_final_message"):
                if getattr(self, name):
                    raise whole(name, f"{name} and a tool_choice that forces a call exclude each other")
        return self

    @property
    def calling(self) -> Calling | None:
        """Which tools the answer may call, and how; None where it can't call any."""
        mode = self.tool_choice.mode if self.tool_choice is not None else "auto"
        if not self.tools or mode == "none":
            return None
        functions = [tool.function for tool in self.tools]
        if self.tool_choice is not None and mode == "named":
            functions = [function for function in functions if function.name == self.tool_choice.name]
        several = mode != "named" and self.parallel_tool_calls is not False
        return Calling(tuple(functions), mode in ("required", "named"), mode == "named", several)

    @property
    def constraining(self) -> list[str]:
        return [*super().constraining, *(["tools"] if self.calling is not None else [])]

    def constraint(self) -> Constraint | None:
        return self.calling.constraint() if self.calling is not None else super().constraint()

    def explained(self, reason: str) -> tuple[str, str]:
        problem = self.calling.problem() if self.calling is not None else None
        if problem is None:
            return super().explained(reason)
        index = next(n for n, tool in enumerate(self.tools or ()) if tool.function.name == problem[0])
        where = f"tools[{index}].function.parameters"
        return where, f"{where} is not a schema that is supported: {problem[1]}"

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
    prompt_logprobs_start: int | None = Field(default=None, ge=0)
    add_special_tokens: bool = True
    allow_special_tokens: bool = False

    @model_validator(mode="after")
    def _check_completion(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise whole("max_tokens", "max_tokens: must be at least 1 where the prompt is not echoed, not 0")
        if self.prompt_logprobs_start is not None and not (self.echo and self.logprobs is not None):
            raise whole(
                "prompt_logprobs_start", "prompt_logprobs_start is only allowed with echo and logprobs"
            )
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise whole("best_of", f"best_of is only supported where it equals n, {self.n or 1}")
        if len(self.prompt) * (self.n or 1) > MAX_CHOICES:
            raise whole(
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
    tools: Tools | None = None
    add_special_tokens: bool = True
    allow_special_tokens: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    pieces: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise whole("prompt", "give either prompt or messages")
        if self.tools and self.messages is None:
            raise whole("tools", "tools is only allowed with messages")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            raise whole(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other",
            )
        return self


class DetokenizeRequest(RequestBody):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
    skip_special_tokens: bool = False
