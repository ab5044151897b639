"""Several states that began as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from .errors import LangError
from .parts import Part

if TYPE_CHECKING:
    from .state import State

__all__ = ["Forks"]

JoinMode = Literal["gather", "concatenate"]


class Forks(Sequence["State"]):
    """The states of `state.fork(n)`, in order. `forks += part` appends to each, `forks[name]` reads from each."""

    def __init__(self, parent: State, branches: Sequence[State]) -> None:
        self._parent = parent
        self._branches = tuple(branches)

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[State]:
        return iter(self._branches)

    @overload
    def __getitem__(self, key: int) -> State: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[State]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> State | Sequence[State] | list[Any]:
        if isinstance(key, str):
            return [branch[key] for branch in self._branches]
        return self._branches[key]

    def __setitem__(self, index: int, branch: State) -> None:
        """The second half of `forks[0] += part`; raises LangError where another state is put in."""
        if branch is not self._branches[index]:
            raise LangError("a branch can't be replaced by another state")

    def __iadd__(self, part: Part | Callable[[int], Part]) -> Forks:
        for number, branch in enumerate(self._branches):
            branch += part(number) if callable(part) else part
        return self

    def join(self, mode: JoinMode = "gather") -> None:
        """Waits for every branch and brings what they found into the state they came from.

        `gather`: each variable that a branch made becomes the list of its values, in the order of the branches;
        `concatenate`: that, and what each branch said is appended, in order. Raises the failure of the first branch
        that failed, and LangError where a branch's conversation can't be appended.
        """
        if mode not in ("gather", "concatenate"):
            raise LangError(f"join: mode {mode!r} is neither gather nor concatenate")
        made = [branch.made() for branch in self._branches]
        if mode == "concatenate":
            for branch in self._branches:
                self._parent.append_branch(branch)
        for name in dict.fromkeys(name for variables in made for name in variables):
            self._parent[name] = [variables.get(name) for variables in made]
