"""The messages of a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from .fields import Content, problem
from .schema_parts import Strict, unsupported
from .tools import ToolCallPart

__all__ = ["Message"]

MAX_CALLS_BACK = 128


class Message(Strict):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    tool_calls: list[ToolCallPart] = Field(default=[], max_length=MAX_CALLS_BACK)

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: Any) -> Any:
        """Refuses what is not built; an assistant who calls needs not say anything."""
        if not isinstance(value, dict):
            return value
        for name in ("function_call", "refusal", "audio"):
            if value.get(name):
                raise unsupported(f".{name}", name)
        value = {name: part for name, part in value.items() if name != "tool_calls" or part}
        if "tool_calls" in value and value.get("content") is None:
            value["content"] = ""
        return value

    @model_validator(mode="after")
    def _check_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise problem('must be "assistant" where there are tool_calls', ".role", self.role)
        return self

    @property
    def num_bytes(self) -> int:
        """Bytes of all its text."""
        called = sum(len(call.function.arguments.encode()) for call in self.tool_calls)
        return len(self.content.encode()) + called

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        more = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [call.for_template() for call in self.tool_calls] or None,
        }
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
            **{key: part for key, part in more.items() if part is not None},
        }
