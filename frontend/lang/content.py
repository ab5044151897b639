"""What a state has said so far, and the prompt it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import LangError

__all__ = ["Content", "Generated", "Message", "Prompt"]


@dataclass(frozen=True, slots=True)
class Generated:
    """Text that the model wrote, with the very token ids it wrote, where they spell just this text."""

    text: str
    token_ids: tuple[int, ...] | None = None


Piece = str | Generated
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a backend is to continue: plain pieces, or a conversation whose last answer may have begun.

    `follows` is true once the model has written something in this state: its pages are warm. `run` is the number of
    the run that asks.
    """

    pieces: tuple[Piece, ...] = ()
    messages: tuple[Message, ...] | None = None
    begun: str = ""
    follows: bool = False
    run: int = 0

    @property
    def text(self) -> str:
        """The plain pieces as one text."""
        return joined(self.pieces)


@dataclass(slots=True)
class Content:
    """Either plain text or a conversation: the first part that is added decides which."""

    pieces: list[Piece] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    role: str | None = None
    draft: list[Piece] = field(default_factory=list)
    follows: bool = False

    @property
    def is_chat(self) -> bool:
        return bool(self.messages) or self.role is not None

    def copy(self) -> Content:
        return Content(list(self.pieces), list(self.messages), self.role, list(self.draft), self.follows)

    def append(self, piece: Piece) -> None:
        """Adds text; raises LangError between two messages of a conversation."""
        if isinstance(piece, Generated):
            self.follows = True
        if self.role is not None:
            self.draft.append(piece)
        elif self.messages:
            raise LangError(
                "text outside of a role: a conversation consists of system, user and assistant parts"
            )
        elif piece:
            self.pieces.append(piece)

    def open(self, role: str) -> None:
        """Begins a message; raises LangError inside another one, or after plain text."""
        if self.role is not None:
            raise LangError(f"a role stands inside another: {role} in {self.role}")
        if self.pieces:
            raise LangError(f"{role} after plain text: a program is either plain text or a conversation")
        self.role = role

    def close(self) -> None:
        """Ends the message that was begun."""
        assert self.role is not None, "no role is open"
        self.messages.append({"role": self.role, "content": joined(self.draft)})
        self.role = None
        self.draft = []

    def prompt(self, run: int) -> Prompt:
        """What the model is to continue here; raises LangError where in a conversation it isn't the model's turn."""
        if not self.is_chat:
            return Prompt(tuple(self.pieces), follows=self.follows, run=run)
        if self.role != "assistant":
            where = f"inside {self.role}" if self.role else "outside of a role"
            raise LangError(
                f"the model was asked to write {where}; in a conversation it writes inside assistant(...)"
            )
        begun = joined(self.draft)
        return Prompt(messages=tuple(self.messages), begun=begun, follows=self.follows, run=run)

    def text(self) -> str:
        """Everything said so far, without the marks of a chat template."""
        spoken = "".join(message["content"] for message in self.messages)
        return joined(self.pieces) + spoken + joined(self.draft)

    def extend(self, branch: Content, since: Content) -> None:
        """Appends what came to `branch` after it was copied from `since`.

        Raises LangError where that ends a message which was open then: this content still has it open.
        """
        if since.role is not None and (branch.role is None or len(branch.messages) > len(since.messages)):
            raise LangError("a fork ended the message in which it began, so what it said can't be appended")
        if branch.role != since.role:
            raise LangError("a fork has a message open, so what it said can't be appended")
        self.pieces += branch.pieces[len(since.pieces) :]
        self.messages += branch.messages[len(since.messages) :]
        self.draft += branch.draft[len(since.draft) :]
        self.follows |= branch.follows


def joined(pieces: Sequence[Piece]) -> str:
    """The text of pieces."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
