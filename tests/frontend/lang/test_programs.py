"""What a program writes, reads and knows; the model is a toy."""

import keyword

import pytest

from tests.frontend.lang.programs import ToyBackend
from trunkline import assistant, backend, function, gen, image, select, set_default_backend, system, user
from trunkline.frontend.lang import LangError, ProgramError, State, UnknownVariable, UnsupportedError


def test_text_and_answers_follow_one_another_and_answers_are_variables() -> None:
    toy = ToyBackend()

    @function
    def program(s: State, question: str) -> int:
        s += "Q: " + question + "\n"
        s += "A: " + gen("answer") + "\nB: " + gen("again")
        return len(s["answer"])

    result = program.using(toy).run("why?")
    assert result.text() == "Q: why?\nA: <1>\nB: <2>"
    assert result.variables == {"answer": "<1>", "again": "<2>"}
    assert result.value == 3
    assert toy.prompts == ["Q: why?\nA: ", "Q: why?\nA: <1>\nB: "]


def test_answer_without_a_name_stands_in_the_text_and_in_the_log() -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen()

    result = program.using(ToyBackend()).run()
    assert result.text() == "a<1>"
    assert [(entry.name, entry.value) for entry in result.log] == [(None, "<1>")]
    assert result.variables == {}


def test_last_answer_of_a_name_wins_and_the_log_keeps_the_first() -> None:
    @function
    def program(s: State) -> None:
        s += gen("a") + gen("a")

    result = program.using(ToyBackend()).run()
    assert result["a"] == "<2>"
    assert [entry.value for entry in result.log] == ["<1>", "<2>"]
    assert result.log[0].position.function == "program"


def test_name_may_be_a_keyword() -> None:
    @function
    def program(s: State) -> str:
        s += gen("class")
        return s["class"]

    assert keyword.iskeyword("class")
    assert program.using(ToyBackend()).run().value == "<1>"


def test_reading_what_was_never_made_names_what_there_is() -> None:
    @function
    def program(s: State) -> str:
        s += gen("answer")
        return s["anser"]

    with pytest.raises(UnknownVariable, match="there is no variable 'anser'; made so far: 'answer'"):
        program.using(ToyBackend()).run()
    with pytest.raises(KeyError):
        program.using(ToyBackend()).run()


def test_answer_that_nobody_reads_is_still_made_once() -> None:
    toy = ToyBackend()

    @function
    def program(s: State) -> None:
        s += "x" + gen("a")

    program.using(toy).run()
    assert toy.prompts == ["x"]


def test_several_answers_are_a_list_and_the_first_goes_on() -> None:
    @function
    def program(s: State) -> None:
        s += gen("a", n=3) + "."

    result = program.using(ToyBackend()).run()
    assert result["a"] == ["<1>", "<1>", "<1>"]
    assert result.text() == "<1>."


def test_conversation_is_made_of_calls_and_blocks() -> None:
    toy = ToyBackend()

    @function
    def program(s: State) -> None:
        s += system("Be brief.") + user("Hello")
        s += assistant(gen("first"))
        with s.user():
            s += "Again, "
            s += "please"
        with s.assistant():
            s += "Well: "
            s += gen("second")

    result = program.using(toy).run()
    assert result.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "<1>"},
        {"role": "user", "content": "Again, please"},
        {"role": "assistant", "content": "Well: <2>"},
    ]
    assert toy.prompts[0][-1] == ""
    assert toy.prompts[1][-1] == "Well: "
    assert result.text() == "Be brief.Hello<1>Again, pleaseWell: <2>"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: user("a") + "b", "text outside of a role"),
        (lambda: "a" + user("b"), "user after plain text"),
        (lambda: user("a") + gen("x"), "asked to write outside of a role"),
        (lambda: user("a" + gen("x")), "asked to write inside user"),
        (lambda: user(assistant("x")), "a role stands inside another: assistant in user"),
        (lambda: 5, "a state takes text, gen, select and roles, not int 5"),
        (lambda: "half \ud83d", "lone surrogate at character 5"),
        (lambda: gen("a", max_token=5), "gen has no option 'max_token'; did you mean max_tokens"),
        (lambda: gen(""), "name of a variable"),
        (lambda: select("a", []), "there is no choice"),
        (lambda: select("a", ["x", ""]), r"choices\[1\] is empty"),
        (lambda: select("a", "xy"), "choices must be a list of strings"),
        (lambda: select("a", ["x"], "best"), "method 'best' is none of"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(part, message: str) -> None:
    @function
    def program(s: State) -> None:
        s += part()

    with pytest.raises(LangError, match=message):
        program.using(ToyBackend()).run()


def test_images_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="image is not supported"):
        image("cat.png")


def test_braces_percent_signs_and_control_tokens_stay_text() -> None:
    toy = ToyBackend()
    text = "{x} %s {{}} <|im_end|>\n<|im_start|>system \u202e\0"

    @function
    def program(s: State) -> None:
        s += text + gen()

    program.using(toy).run()
    assert toy.prompts == [text]


def test_one_program_calls_another_on_its_state_or_runs_it_beside() -> None:
    @function
    def inner(s: State, text: str) -> str:
        s += text + gen("inner")
        return s["inner"]

    @function
    def outer(s: State) -> tuple[str, str]:
        own = inner(s, "a")
        return own, inner.using(ToyBackend()).run("b")["inner"]

    result = outer.using(ToyBackend()).run()
    assert result.value == ("<1>", "<1>")
    assert result.text() == "a<1>"


def test_backend_comes_from_the_run_the_block_or_the_process() -> None:
    process, block, own = ToyBackend(), ToyBackend(), ToyBackend()

    @function
    def program(s: State) -> None:
        s += gen()

    with pytest.raises(LangError, match="no backend: name one with set_default_backend"):
        program.run()
    set_default_backend(process)
    try:
        program.run()
        with backend(block):
            program.run()
            program.using(own).run()
        program.run()
    finally:
        set_default_backend(None)
    assert [len(toy.prompts) for toy in (process, block, own)] == [2, 1, 1]


def test_result_is_readable_after_the_run_and_a_running_state_is_not_from_outside() -> None:
    kept: list[State] = []

    @function
    def program(s: State) -> None:
        kept.append(s)
        s += "x" + gen("a")

    result = program.using(ToyBackend()).run()
    assert kept == [result]
    assert result["a"] == "<1>"
    assert result.ok


def test_run_inside_an_event_loop_says_what_to_use() -> None:
    import asyncio

    @function
    def program(s: State) -> None:
        s += gen("a")

    async def main() -> str:
        with pytest.raises(LangError, match=r"await program\.arun"):
            program.using(ToyBackend()).run()
        return (await program.using(ToyBackend()).arun())["a"]

    assert asyncio.run(main()) == "<1>"


def test_failed_step_names_its_line_and_shows_how_far_the_state_came() -> None:
    states: list[State] = []

    @function
    def program(s: State) -> None:
        states.append(s)
        s += "good" + gen("a")
        s += " bad" + gen("b")
        s += gen("c")

    with pytest.raises(
        ProgramError, match=r"test_programs.py:\d+ in program: gen 'b': the server answered 500"
    ) as caught:
        program.using(ToyBackend(broken=["bad"])).run()
    assert caught.value.position.line == program.__wrapped__.__code__.co_firstlineno + 4
    assert states[0].text() == "good<1> bad"
    assert [entry.name for entry in states[0].log] == ["a"]
