"""Chat completions on the wire: a message, or chunks that add to one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import msgspec

from trunkline.runtime.engine.outputs import RequestOutput
from trunkline.runtime.loading import Tokenizer

from .answers import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    Vendor,
)
from .logprobs import chat_logprobs, visible_logprobs
from .schemas import ChatRequest
from .tool_calls import Calling, CallParser, Piece

__all__ = ["ChatLayout"]


class ChatLayout:
    """How the answer to a chat request is written, streamed or not."""

    def __init__(self, id: str, body: ChatRequest, tokenizer: Tokenizer) -> None:
        self.id = id
        self.vendor: Vendor | None = None
        self._created = int(time.time())
        self._model = body.model
        self._logprobs = bool(body.logprobs)
        self._usage = None if body.include_usage else msgspec.UNSET
        self._tokenizer = tokenizer
        self._calling = body.calling
        self._silence = None if body.calling is not None and body.calling.must else ""
        self._speeches: dict[int, _Speech] = {}

    def chunks(self, choice: int, output: RequestOutput) -> list[ChatChunk]:
        chunks = []
        if choice not in self._speeches:
            self._speeches[choice] = _Speech(self._calling)
            chunks.append(self._chunk(ChunkChoice(choice, Delta(role="assistant", content=self._silence))))
        speech = self._speeches[choice]
        deltas = [_delta(speech, piece) for piece in speech.pieces(output)]
        logprobs = self._scored([output])
        if logprobs is not None and logprobs.content and not deltas:
            deltas.append(Delta(content="") if self._calling is None else Delta())
        for delta in deltas:
            chunks.append(self._chunk(ChunkChoice(choice, delta, logprobs=logprobs)))
            logprobs = None  # the first of them alone carries it
        if output.finish_reason is not None:
            chunks.append(self._chunk(ChunkChoice(choice, Delta(), speech.finish_reason(output))))
        return chunks

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        return ChatChunk(self.id, self._created, self._model, [], usage=usage)

    def whole(self, outputs: Sequence[Sequence[RequestOutput]], usage: Usage) -> ChatCompletion:
        choices = []
        for index, parts in enumerate(outputs):
            speech = _Speech(self._calling)
            pieces = [piece for output in parts for piece in speech.pieces(output)]
            message = _message(pieces, self._silence)
            choices.append(ChatChoice(index, message, speech.finish_reason(parts[-1]), self._scored(parts)))
        return ChatCompletion(
            self.id, self._created, self._model, choices, usage, trunkline=self.vendor or msgspec.UNSET
        )

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        vendor, self.vendor = self.vendor, None  # the first chunk alone carries it
        return ChatChunk(
            self.id,
            self._created,
            self._model,
            [choice],
            usage=self._usage,
            trunkline=vendor or msgspec.UNSET,
        )

    def _scored(self, outputs: Sequence[RequestOutput]) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return chat_logprobs(
            self._tokenizer, [entry for output in outputs for entry in visible_logprobs(output)]
        )


class _Speech:
    """What one choice says and calls."""

    def __init__(self, calling: Calling | None) -> None:
        self._calling = calling
        self._parser = CallParser(calling) if calling is not None else None
        self.num_calls = 0

    def pieces(self, output: RequestOutput) -> list[Piece]:
        """What an output makes certain."""
        if self._parser is None:
            # A token without text of its own still comes: a client that times its tokens sees each.
            return [Piece("prose", output.text)] if output.text or output.finish_reason is None else []
        ending = self._parser.finish if output.finish_reason is not None else list
        return [*self._parser.feed(output.text), *ending()]

    def finish_reason(self, output: RequestOutput) -> str:
        """Why it ended, of its last output."""
        reason = output.finish_reason or "length"
        if self._parser is None or self._calling is None:
            return reason
        return self._calling.finish_reason(reason, self._parser)


def _delta(speech: _Speech, piece: Piece) -> Delta:
    """A piece as what a chunk adds."""
    match piece.kind:
        case "prose":
            return Delta(content=piece.text)
        case "call":
            speech.num_calls += 1
            call = ToolCallDelta(
                speech.num_calls - 1, FunctionDelta("", piece.text), id=_new_id(), type="function"
            )
        case "arguments":
            call = ToolCallDelta(speech.num_calls - 1, FunctionDelta(piece.text))
    return Delta(tool_calls=[call])


def _message(pieces: Sequence[Piece], silence: str | None) -> ChatMessage:
    """All pieces of a choice as one message; `silence` is the content of one that says and calls nothing."""
    prose = "".join(piece.text for piece in pieces if piece.kind == "prose")
    calls: list[tuple[str, list[str]]] = []
    for piece in pieces:
        if piece.kind == "call":
            calls.append((piece.text, []))
        elif piece.kind == "arguments":
            calls[-1][1].append(piece.text)
    if not calls:
        return ChatMessage(prose or silence)
    called = [ToolCall(_new_id(), CalledFunction(name, "".join(parts))) for name, parts in calls]
    return ChatMessage(prose or None, tool_calls=called)


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
