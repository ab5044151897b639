"""The state of a program: what was said, the variables, and the steps that wait for the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from .calls import choose, generate
from .content import Content, Message
from .errors import LangError, Position, ProgramError, UnknownVariable
from .forks import Forks
from .parts import Gen, Part, Role, RoleName, Select, flatten
from .records import Branch, Close, Entry, Meta, Open, Snapshot, Step
from .running import Run, caller, wait

__all__ = ["State"]

T = TypeVar("T")


class State:
    """What a program writes on: `state += part` appends, `state["name"]` reads what the model said.

    Appending never waits: text and calls of the model are worked off in order, beside the program and beside
    other states. Reading waits until everything appended so far is done. A step that fails ends its state; the
    error, a ProgramError, is raised by whatever reads or appends next, and by the run at its end if nothing did.
    `text()` and `log` show how far a failed state came.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._content = Content()
        self._parent = Snapshot(Content(), {}, {})
        self._variables: dict[str, Any] = {}
        self._meta: dict[str, Meta] = {}
        self._log: list[Entry] = []
        self._steps: deque[tuple[Step, Position]] = deque()
        self._error: ProgramError | None = None
        self._seen = False
        self._task: asyncio.Task[None] | None = None
        run.states.append(self)

    def __iadd__(self, part: Part) -> State:
        position = caller()
        for item in flatten(part):
            if isinstance(item, Role):
                self._add(Open(item.role), position)
                for inner in item.parts:
                    self._add(inner, position)
                self._add(Close(), position)
            else:
                self._add(item, position)
        return self

    def __getitem__(self, name: str) -> Any:
        self._settle()
        return _known(self._variables, name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._settle()
        self._variables[name] = value

    def __contains__(self, name: object) -> bool:
        self._settle()
        return name in self._variables

    @property
    def variables(self) -> dict[str, Any]:
        """Every variable made so far, the latest value of each."""
        self._settle()
        return dict(self._variables)

    @property
    def log(self) -> tuple[Entry, ...]:
        """Everything the model said in this state, in order, a variable's earlier values too."""
        self._wait()
        return tuple(self._log)

    def text(self) -> str:
        """Everything said so far, without the marks of a chat template."""
        self._wait()
        return self._content.text()

    def messages(self) -> list[Message]:
        """The whole messages of a conversation so far; none for plain text."""
        self._settle()
        return [dict(message) for message in self._content.messages]

    def meta(self, name: str) -> Meta:
        """What is known of the `gen` or `select` that made a variable."""
        self._settle()
        return _known(self._meta, name)

    @contextmanager
    def system(self) -> Iterator[None]:
        """`with state.system():` what is appended inside is one system message."""
        with self._message("system"):
            yield

    @contextmanager
    def user(self) -> Iterator[None]:
        """`with state.user():` what is appended inside is one message of the user's."""
        with self._message("user"):
            yield

    @contextmanager
    def assistant(self) -> Iterator[None]:
        """`with state.assistant():` what is appended inside is one message of the model's."""
        with self._message("assistant"):
            yield

    def fork(self, count: int = 1) -> Forks:
        """`count` states that go on from here, each on its own; what they begin with is computed once.

        They see the variables made so far, never those of each other. Raises LangError for a count below 1.
        """
        if count < 1:
            raise LangError(f"a state forks into at least 1, not {count}")
        self._raise()
        return Forks(self, [self._branch(caller()) for _ in range(count)])

    def made(self) -> dict[str, Any]:
        """The variables that a fork has made, or changed, itself."""
        self._settle()
        before = self._parent.variables
        return {
            name: value
            for name, value in self._variables.items()
            if name not in before or before[name] is not value
        }

    def append_branch(self, branch: State) -> None:
        """Appends what a fork of this state has said itself."""
        self._settle()
        branch._settle()
        self._content.extend(branch._content, since=branch._parent.content)

    async def done(self) -> None:
        """Waits until nothing is left to do: then another task than the program's own can read, too.

        Raises nothing of what happened; reading does.
        """
        while self._task is not None:
            await self._task

    def abandon(self) -> None:
        """Forgets work that was cancelled with its run."""
        self._task = None
        self._steps.clear()

    def raise_unseen(self) -> None:
        """Raises the failure of this state unless somebody has had it already."""
        if not self._seen:
            self._raise()

    @contextmanager
    def _message(self, role: RoleName) -> Iterator[None]:
        self._add(Open(role), caller())
        yield
        self._add(Close(), caller())

    def _branch(self, position: Position) -> State:
        branch = State(self._run)
        if self._task is None:
            branch._begin(self._snapshot())
        else:
            origin: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
            self._steps.append((Branch(origin), position))
            branch._task = self._run.start(branch._work(origin))
        return branch

    def _add(self, step: Step, position: Position) -> None:
        self._raise()
        try:
            if isinstance(step, str):
                step.encode()
            if self._task is None and not isinstance(step, Gen | Select):
                self._note(step)
                return
        except (LangError, UnicodeEncodeError) as error:
            self._fail(ProgramError(_described(step), position, _explained(error)))
            self._raise()
        self._steps.append((step, position))
        if self._task is None:
            self._task = self._run.start(self._work(None))

    async def _work(self, origin: asyncio.Future[Snapshot] | None) -> None:
        """Works off the steps in order; a failure ends the state and the forks that were to begin behind it."""
        step: Step = ""
        position = Position("", 0, "")
        try:
            if origin is not None:
                self._begin(await origin)
            while self._steps:
                step, position = self._steps.popleft()
                match step:
                    case Gen():
                        self._record(step, position, *await generate(self._run, self._content, step))
                    case Select():
                        self._record(step, position, *await choose(self._run, self._content, step))
                    case _:
                        self._note(step)
        except ProgramError as error:  # of the state that this one is a fork of
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(ProgramError(_described(step), position, LangError("it was cancelled")))
            self._seen = True  # by whoever cancelled
            raise
        except Exception as error:
            self._fail(ProgramError(_described(step), position, error))
        finally:
            self._task = None

    def _note(self, step: Step) -> None:
        """A step that needs no model."""
        match step:
            case str():
                self._content.append(step)
            case Open(role):
                self._content.open(role)
            case Close():
                self._content.close()
            case Branch(origin):
                origin.set_result(self._snapshot())

    def _record(self, call: Gen | Select, position: Position, value: Any, meta: Meta) -> None:
        self._log.append(Entry(call.name, value, meta, position))
        if call.name is not None:
            self._variables[call.name] = value
            self._meta[call.name] = meta

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._content.copy(), dict(self._variables), dict(self._meta))

    def _begin(self, parent: Snapshot) -> None:
        self._parent = parent
        self._content = parent.content.copy()
        self._variables = dict(parent.variables)
        self._meta = dict(parent.meta)

    def _fail(self, error: ProgramError) -> None:
        self._error = error
        for step, _ in self._steps:
            if isinstance(step, Branch):
                step.origin.set_exception(error)
        self._steps.clear()

    def _wait(self) -> None:
        while self._task is not None:
            wait(self._task)

    def _settle(self) -> None:
        self._wait()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            self._seen = True
            raise self._error


def _known(variables: Mapping[str, T], name: str) -> T:
    try:
        return variables[name]
    except KeyError:
        known = ", ".join(map(repr, variables)) or "none"
        raise UnknownVariable(f"there is no variable {name!r}; made so far: {known}") from None


def _described(step: Step) -> str:
    return str(step) if isinstance(step, Gen | Select) else "append"


def _explained(error: LangError | UnicodeEncodeError) -> Exception:
    if isinstance(error, UnicodeEncodeError):
        return LangError(f"the text holds a lone surrogate at character {error.start}")
    return error
