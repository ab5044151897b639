"""The messages of a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from .fields import Content
from .schema_parts import Strict, unsupported

__all__ = ["Message"]


class Message(Strict):
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
                    raise unsupported(f".{name}", name)
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
