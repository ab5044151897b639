"""What goes wrong, in the shape in which OpenAI's clients expect it.

ApiError                an answer other than the one that was asked for: status, message, type, param, code
└── ClientGone          nobody is left to answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trunkline.errors import TrunklineError
from trunkline.runtime.errors import ChatTemplateError, EngineDeadError, RequestError

__all__ = [
    "ERROR_SCHEMA",
    "ApiError",
    "ClientGone",
    "answer_exception",
    "engine_failed",
    "error_body",
    "error_response",
    "from_exception",
    "invalid",
    "not_supported",
    "overloaded",
    "shown",
    "shutting_down",
]

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
SHOWN_CHARACTERS = 100

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


class ApiError(TrunklineError):
    """An error that is answered to the client as it stands; `param` names the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


class ClientGone(ApiError):
    """The client closed its connection; the answer reaches nobody. 499 is nginx's number for it."""

    def __init__(self) -> None:
        super().__init__(499, "the client closed its connection", code="client_closed_request")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that can't be served as it stands."""
    return ApiError(400, message, param=param, code=code)


def not_supported(message: str, param: str | None = None) -> ApiError:
    """Something of OpenAI's that nothing here implements; the message names it."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def overloaded(message: str, retry_after: int) -> ApiError:
    """Too much is waiting already; the client may try again."""
    return ApiError(
        503,
        message,
        type="overloaded_error",
        code="overloaded",
        headers={"Retry-After": str(retry_after)},
    )


def engine_failed(message: str) -> ApiError:
    """The engine could not compute an answer; it goes on with the other requests."""
    return ApiError(500, message, type=SERVER_ERROR, code="engine_error")


def shutting_down() -> ApiError:
    """The server takes nothing new, or could not finish what it had within the drain's limit."""
    return ApiError(503, "the server is shutting down", type=SERVER_ERROR, code="shutting_down")


def from_exception(error: Exception) -> ApiError:
    """The answer to anything that was raised; what nobody foresaw says nothing about itself."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _from_validation(error.errors())
        case HTTPException():
            return _from_http(error)
        case RequestError():
            return invalid(str(error), error.param)
        case ChatTemplateError():
            return invalid(str(error), "messages")
        case EngineDeadError():
            return ApiError(500, "the engine has ended unexpectedly", type=SERVER_ERROR, code="engine_dead")
        case _:
            return ApiError(
                500, "the server failed to answer this request", type=SERVER_ERROR, code="internal_error"
            )


def error_body(error: ApiError) -> bytes:
    """The error as OpenAI's JSON."""
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": fields})


def error_response(error: ApiError) -> Response:
    """The error as an answer."""
    return Response(error_body(error), error.status, error.headers, media_type="application/json")


async def answer_exception(_: Request, error: Exception) -> Response:
    """An exception handler for FastAPI."""
    return error_response(from_exception(error))


def shown(value: Any) -> str:
    """A value a client sent, as short JSON on one line."""
    match value:
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
        case int() if value.bit_length() > 128:
            return f"an integer of {value.bit_length()} bits"
        case str():
            cut = value[:SHOWN_CHARACTERS]
            return msgspec.json.encode(cut).decode() + ("…" if len(value) > len(cut) else "")
        case bool() | int() | float() | None:
            return msgspec.json.encode(value).decode()
        case _:
            return "a value of another type"


def _from_validation(problems: Sequence[Any]) -> ApiError:
    """The first problem of a body, path or query, with its field and value."""
    problem = problems[0]
    context = problem.get("ctx", {})
    param = (_path(problem["loc"][1:]) + context.get("at", "")).removeprefix(".")
    if problem["type"] == "missing":
        return invalid(
            f"{param or 'the request body'} is required", param or None, "missing_required_parameter"
        )
    if problem["type"] == "not_supported":
        return not_supported(problem["msg"], param)
    message = problem["msg"]
    value = context.get("value", problem["input"])
    if param and problem["type"] != "whole_request":
        message = f"{param}: {message}, not {shown(value)}"
    return invalid(message, param or None, "invalid_value")


def _path(location: Sequence[str | int]) -> str:
    """`messages[2].role` for ("messages", 2, "role")."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step[:SHOWN_CHARACTERS]}" for step in location]
    return "".join(steps).removeprefix(".")


def _from_http(error: HTTPException) -> ApiError:
    """What the router itself raises: no such path, or not with this method."""
    message, code = {
        404: ("there is nothing at this URL", "unknown_url"),
        405: ("this URL does not take this method", "method_not_allowed"),
    }.get(error.status_code, (HTTPStatus(error.status_code).phrase, None))
    return ApiError(error.status_code, message, code=code, headers=error.headers)
