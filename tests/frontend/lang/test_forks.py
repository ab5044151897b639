"""Forks: what they see, what they share, and what happens when one fails."""

import pytest

from tests.frontend.lang.programs import ToyBackend, nothing_left_behind
from tests.runtime.engines import assert_idle, make_engine, tiny_model
from trunkline import assistant, function, gen, user
from trunkline.frontend.lang import LangError, ProgramError, State, UnknownVariable


def test_fork_of_an_empty_state_works() -> None:
    @function
    def program(s: State) -> list[str]:
        forks = s.fork(2)
        for number, fork in enumerate(forks):
            fork += f"branch {number}" + gen("x")
        return [fork.text() for fork in forks]

    assert program.using(ToyBackend()).run().value == ["branch 0<1>", "branch 1<2>"]


def test_fork_of_a_fork_sees_both_beginnings() -> None:
    @function
    def program(s: State) -> list[str]:
        s += "a" + gen("a")
        (one,) = s.fork(1)
        one += "b" + gen("b")
        two = one.fork(2)
        two += lambda number: f"c{number}" + gen("c")
        assert two[0]["a"] == "<1>"
        assert two["b"] == ["<2>", "<2>"]
        return [branch.text() for branch in two]

    assert program.using(ToyBackend()).run().value == ["a<1>b<2>c0<3>", "a<1>b<2>c1<4>"]


def test_fork_into_none_is_refused() -> None:
    @function
    def program(s: State) -> None:
        s.fork(0)

    with pytest.raises(LangError, match="at least 1, not 0"):
        program.using(ToyBackend()).run()


def test_branches_do_not_see_each_other() -> None:
    @function
    def program(s: State) -> None:
        s += gen("shared")
        left, right = s.fork(2)
        left += gen("own")
        assert left["shared"] == right["shared"]
        right["own"]

    with pytest.raises(UnknownVariable, match="no variable 'own'; made so far: 'shared'"):
        program.using(ToyBackend()).run()


def test_join_gathers_variables_and_concatenates_text() -> None:
    @function
    def program(s: State) -> None:
        s += "start" + gen("before")
        forks = s.fork(2)
        forks += lambda number: f" [{number}" + gen("x") + "]"
        forks.join("concatenate")
        s += " end"

    result = program.using(ToyBackend()).run()
    assert result.text() == "start<1> [0<2>] [1<3>] end"
    assert result.variables == {"before": "<1>", "x": ["<2>", "<3>"]}


def test_join_of_conversations_appends_whole_messages() -> None:
    @function
    def program(s: State) -> None:
        s += user("hello")
        forks = s.fork(2)
        forks += assistant(gen("x"))
        forks.join("concatenate")

    result = program.using(ToyBackend()).run()
    assert [message["content"] for message in result.messages()] == ["hello", "<1>", "<2>"]


def test_branches_run_at_the_same_time() -> None:
    toy = ToyBackend()

    @function
    def program(s: State) -> None:
        s += "x" + gen("a")
        for fork in s.fork(3):
            fork += "1" + gen("b")
            fork += "2" + gen("c")

    program.using(toy).run()
    assert [prompt.count("<") for prompt in toy.prompts] == [0, 1, 1, 1, 2, 2, 2]


def test_failure_in_one_of_eight_branches_reaches_the_caller_and_ends_the_others() -> None:
    toy = ToyBackend(broken=["branch 3"], stuck=[f"branch {number}" for number in range(4, 8)])

    @function
    def program(s: State) -> None:
        forks = s.fork(8)
        for number, fork in enumerate(forks):
            fork += f"branch {number}" + gen("x")
        forks.join()

    with nothing_left_behind(), pytest.raises(ProgramError, match="gen 'x': the server answered 500"):
        program.using(toy).run()
    assert len(toy.cancelled) == 4
    assert toy.num_open == 0


def test_exception_of_the_program_itself_ends_its_requests() -> None:
    toy = ToyBackend(stuck=["slow"])

    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks += "slow" + gen("x")
        quick = s.fork(1)
        quick += gen("y")
        _ = quick["y"]
        raise ZeroDivisionError("mine")

    with nothing_left_behind(), pytest.raises(ZeroDivisionError, match="mine"):
        program.using(toy).run()
    assert len(toy.cancelled) == 2


def test_failure_that_the_program_handled_does_not_fail_the_run() -> None:
    @function
    def program(s: State) -> str:
        bad, good = s.fork(2)
        bad += "bad" + gen("x")
        good += "good" + gen("x")
        try:
            return bad["x"]
        except ProgramError:
            return good["x"]

    assert program.using(ToyBackend(broken=["bad"])).run().value == "<2>"


def test_failure_of_a_branch_that_nobody_read_fails_the_run() -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks[1] += "bad" + gen("x")

    with pytest.raises(ProgramError, match="gen 'x'"):
        program.using(ToyBackend(broken=["bad"])).run()


def test_failure_before_a_fork_reaches_its_branches() -> None:
    @function
    def program(s: State) -> str:
        s += "bad" + gen("x")
        (fork,) = s.fork(1)
        fork += gen("y")
        return fork["y"]

    with pytest.raises(ProgramError, match="gen 'x': the server answered 500"):
        program.using(ToyBackend(broken=["bad"])).run()


def test_eight_branches_compute_two_thousand_tokens_once() -> None:
    engine = make_engine(tiny_model(max_positions=4096), tokens=8192)
    text = " ".join(f"word{number}" for number in range(700))
    length = len(engine.encode(text))
    assert length > 2000

    @function(temperature=0.0, max_tokens=4, ignore_eos=True)
    def program(s: State) -> None:
        s += text
        forks = s.fork(8)
        forks += lambda number: f" Branch {number}:" + gen("x")
        deeper = forks[0].fork(2)
        deeper += gen("y")
        forks.join()

    result = program.using(engine).run()
    assert len(result["x"]) == 8
    assert engine.stats().num_computed_tokens < length + 10 * 12
    assert_idle(engine)


def test_empty_fork_then_text_reaches_a_real_engine_as_that_text() -> None:
    engine = make_engine()

    @function(temperature=0.0, max_tokens=3)
    def program(s: State) -> None:
        first, second = s.fork(2)
        (inner,) = first.fork(1)
        inner += "one" + gen("x")
        second += gen("x")

    result = program.using(engine).run()
    assert result.text() == ""
    assert engine.stats().num_generated_tokens == 6
    assert_idle(engine)


def test_join_in_another_mode_is_refused() -> None:
    @function
    def program(s: State) -> None:
        s.fork(2).join("sum")

    with pytest.raises(LangError, match="mode 'sum' is neither gather nor concatenate"):
        program.using(ToyBackend()).run()
