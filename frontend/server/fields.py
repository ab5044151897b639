"""Types of request fields that take more than one form, checked so that an error names the part at fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from trunkline.runtime.sampling.params import MAX_LOGIT_BIASES, MAX_STOP_BYTES, MAX_STOP_TOKEN_IDS, MAX_STOPS

__all__ = ["Content", "LogitBias", "Prompts", "Stop", "StopTokenIds", "problem"]

MAX_PROMPTS = 128


def problem(message: str, at: str = "", value: Any = None) -> PydanticCustomError:
    """A validation error about the part `at` ("[3]", ".type") of the field that is being validated."""
    return PydanticCustomError("part", "{message}", {"message": message, "at": at, "value": value})


def _stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise problem("must be a string or a list of strings", value=value)
    if len(stops) > MAX_STOPS:
        raise problem(f"must hold at most {MAX_STOPS} strings", value=value)
    for index, text in enumerate(stops):
        at = "" if isinstance(value, str) else f"[{index}]"
        if not isinstance(text, str) or not text:
            raise problem("must be a string that is not empty", at, text)
        if len(text.encode()) > MAX_STOP_BYTES:
            raise problem(f"must have at most {MAX_STOP_BYTES} bytes", at, text)
    return stops


def _stop_token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKEN_IDS:
        raise problem(f"must be a list of at most {MAX_STOP_TOKEN_IDS} token ids", value=value)
    for index, token in enumerate(value):
        if type(token) is not int or token < 0:
            raise problem("must be a token id", f"[{index}]", token)
    return value


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise problem("must be an object of token ids and biases", value=value)
    if len(value) > MAX_LOGIT_BIASES:
        raise problem(f"must hold at most {MAX_LOGIT_BIASES} token ids", value=value)
    biases = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise problem("must have token ids as keys", value=key)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise problem("must be a number in [-100, 100]", f".{key}", bias)
        biases[int(key)] = float(bias)
    return biases


def _prompts(value: Any) -> list[str | list[int]]:
    """One prompt or several, as text or token ids; the ids are checked against the vocabulary later."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise problem(
            "must be a string, a list of token ids, or a list of either, and not empty", value=value
        )
    if isinstance(value[0], int):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise problem(f"must hold at most {MAX_PROMPTS} prompts", value=value)
    for index, prompt in enumerate(value):
        if not isinstance(prompt, str | list):
            raise problem("must be a string or a list of token ids", f"[{index}]", prompt)
    return value


def _content(value: Any) -> str:
    """The text of a message; text parts are put together."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise problem("must be a string or a list of text parts, and not empty", value=value)
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict):
            raise problem("must be an object with type and text", f"[{index}]", part)
        kind = part.get("type")
        if kind != "text":
            raise problem('must be "text", the only type supported', f"[{index}].type", kind)
        if not isinstance(part.get("text"), str):
            raise problem("must be a string", f"[{index}].text", part.get("text"))
        texts.append(part["text"])
    return "".join(texts)


def _one_of(*schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schemas)})


def _checked(check: Callable[[Any], Any]) -> BeforeValidator:
    return BeforeValidator(check)


_STRING: dict[str, Any] = {"type": "string"}
_STOP_STRING: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_BYTES}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT_PART: dict[str, Any] = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _STRING},
}
_BIAS: dict[str, Any] = {"type": "number", "minimum": -100, "maximum": 100}


def _list(items: dict[str, Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **bounds}


Stop = Annotated[list[str], _checked(_stop), _one_of(_STOP_STRING, _list(_STOP_STRING, maxItems=MAX_STOPS))]
StopTokenIds = Annotated[
    list[int],
    _checked(_stop_token_ids),
    WithJsonSchema(_list({"type": "integer", "minimum": 0}, maxItems=MAX_STOP_TOKEN_IDS)),
]
LogitBias = Annotated[
    dict[int, float],
    _checked(_logit_bias),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": _BIAS,
            "maxProperties": MAX_LOGIT_BIASES,
        }
    ),
]
Prompts = Annotated[
    list[Any],
    _checked(_prompts),
    _one_of(
        _STRING,
        _IDS,
        _list(_STRING, minItems=1, maxItems=MAX_PROMPTS),
        _list(_IDS, minItems=1, maxItems=MAX_PROMPTS),
    ),
]
Content = Annotated[str, _checked(_content), _one_of(_STRING, _list(_TEXT_PART, minItems=1))]
