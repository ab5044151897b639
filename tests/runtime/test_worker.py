"""The worker's loop, with the parent's side of the socket in this process."""

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.runtime.engines import GREEDY, assert_idle, make_engine, random_prompt
from trunkline.radix import DEFAULT_NAMESPACE
from trunkline.runtime.engine.wire import (
    Abort,
    FromEngine,
    Outputs,
    Refused,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
)
from trunkline.runtime.engine.worker import Worker
from trunkline.runtime.sampling import Constraint, SamplingParams

DEADLINE = 30.0
NEW, KNOWN, WRONG = Constraint.choices(["new"]), Constraint.choices(["known"]), Constraint.regex("(")


class Parent(BaseException):
    """Ends a worker, as nobody asks for anything more."""


class Socket:
    """Commands for a worker: those it begins with, and those that `react` gives for what it sent."""

    def __init__(
        self, commands: list[ToEngine], react: Callable[[FromEngine], list[ToEngine] | None]
    ) -> None:
        self._commands = [encode(command) for command in commands]
        self._react = react
        self._is_over = False

    def poll(self, timeout: int) -> int:
        if self._is_over:
            raise Parent
        return len(self._commands)

    def recv(self) -> bytes:
        return self._commands.pop(0)

    def send(self, data: bytes) -> None:
        commands = self._react(decode_from_engine(data))
        self._is_over = commands is None
        self._commands += [encode(command) for command in commands or ()]


class Compiling:
    """Grammars of an engine that take until `go_on` to compile."""

    def __init__(self, engine: Any) -> None:
        self.go_on = threading.Event()
        grammars = engine.runner.grammars
        grammars.check(KNOWN)
        compile_grammar, caller = grammars._compile, threading.current_thread()

        def compile_late(constraint: Constraint) -> Any:
            assert threading.current_thread() is not caller, "the engine's own thread compiles"
            assert self.go_on.wait(DEADLINE)
            return compile_grammar(constraint)

        grammars._compile = compile_late


def submit(id: str, params: SamplingParams) -> Submit:
    prompt = np.array(random_prompt(20, seed=1), dtype=np.int32).tobytes()
    return Submit(id, prompt, params, 0, DEFAULT_NAMESPACE, False)


def constrained(id: str, constraint: Constraint) -> Submit:
    return submit(id, SamplingParams(max_tokens=20, constraint=constraint))


def test_others_are_answered_while_a_grammar_compiles() -> None:
    engine = make_engine()
    compiling = Compiling(engine)
    ended: list[tuple[str, str | None]] = []

    def react(message: FromEngine) -> list[ToEngine] | None:
        if isinstance(message, Outputs):
            ended.extend((output.id, output.finish_reason) for output in message.outputs if output.last)
        if {id for id, _ in ended} == {"free", "known"}:
            compiling.go_on.set()
        return None if len(ended) == 3 or isinstance(message, Refused) else []

    commands = [constrained("new", NEW), submit("free", GREEDY), constrained("known", KNOWN)]
    with pytest.raises(Parent):
        Worker(engine, Socket(commands, react), os.getppid()).serve()
    assert sorted(ended[:2]) == [("free", "length"), ("known", "stop")]
    assert ended[2] == ("new", "stop")
    assert_idle(engine)


def test_request_that_is_aborted_while_its_grammar_compiles_is_never_queued() -> None:
    engine = make_engine()
    compiling = Compiling(engine)
    seen: list[FromEngine] = []

    def react(message: FromEngine) -> list[ToEngine] | None:
        seen.append(message)
        match message:
            case Outputs([]):
                compiling.go_on.set()
            case Refused("wrong"):
                return None
        return []

    commands = [constrained("gone", NEW), constrained("wrong", WRONG), Abort("gone")]
    with pytest.raises(Parent):
        Worker(engine, Socket(commands, react), os.getppid()).serve()
    assert [type(message).__name__ for message in seen] == ["Ready", "Outputs", "Refused"]
    assert seen[2].param == "constraint"
    assert "regex is not a grammar" in seen[2].message
    assert engine.stats().num_prompt_tokens == 0
    assert not engine.has_work
