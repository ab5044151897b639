"""The exceptions of the runtime room.

RuntimeRoomError
├── LoadError                   a model can't be found or read
│   ├── UnknownArchitectureError    it can be read, but nothing here can run it
│   └── TokenizerError              its tokenizer can't be built, or can't do what was asked
├── ChatTemplateError           there is no chat template, or it refused the messages
├── EngineStartError            the engine's process could not start
├── EngineDeadError             it has ended
└── RequestError                a request asks for something that can't be done
"""

from __future__ import annotations

from trunkline.errors import TrunklineError

__all__ = [
    "ChatTemplateError",
    "EngineDeadError",
    "EngineStartError",
    "LoadError",
    "RequestError",
    "RuntimeRoomError",
    "TokenizerError",
    "UnknownArchitectureError",
]


class RuntimeRoomError(TrunklineError):
    """Base of everything the runtime room raises."""


class LoadError(RuntimeRoomError):
    """A model can't be found or read; the message names the file and is one line."""


class UnknownArchitectureError(LoadError):
    """A readable model of an architecture (scaling, activation, …) nobody here runs; the message names it."""


class TokenizerError(LoadError):
    """A tokenizer that can't be built, or an id or text it can't handle."""


class ChatTemplateError(RuntimeRoomError):
    """No chat template, or one that refused the messages; carries the template's own words."""


class EngineStartError(RuntimeRoomError):
    """The engine's process could not load its model; carries its words."""


class EngineDeadError(RuntimeRoomError):
    """The engine's process has ended, and with it the request."""


class RequestError(RuntimeRoomError):
    """A request that can't be served as it stands: its prompt, its parameters or its size.

    `param` is the request's field at fault (`"prompt"`, `"temperature"`, …), where one can be named.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
