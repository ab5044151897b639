"""What passes between the server's process and the engine's: msgpack, one tagged message a frame."""

from __future__ import annotations

from typing import Any

import msgspec

from trunkline.runtime.sampling import SamplingParams

from .outputs import RequestOutput
from .stats import EngineInfo, EngineStats

__all__ = [
    "Abort",
    "Call",
    "Failed",
    "FromEngine",
    "Outputs",
    "Ready",
    "Refused",
    "Reply",
    "Submit",
    "ToEngine",
    "decode_from_engine",
    "decode_to_engine",
    "encode",
]


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new request; `prompt` is int32 token ids in native byte order."""

    id: str
    prompt: bytes
    params: SamplingParams
    priority: int
    namespace: tuple[str, str]
    explain: bool


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The client is gone; an unknown id is left alone."""

    id: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """Runs a named operation in the engine's process; answered by a Reply with the same number."""

    number: int
    name: str
    arguments: dict[str, Any]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    info: EngineInfo
    stats: EngineStats


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start."""

    message: str


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """What a step brought, the state after it, and when that was (Unix seconds)."""

    outputs: list[RequestOutput]
    stats: EngineStats
    at: float = 0.0


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A submitted request that can't be served; nothing of it is queued."""

    id: str
    message: str
    param: str | None


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The value of a Call, or why it failed, and the state after it."""

    number: int
    value: Any
    stats: EngineStats
    error: str | None = None


ToEngine = Submit | Abort | Call
FromEngine = Ready | Failed | Outputs | Refused | Reply

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
