"""`select`: each method by hand on a toy model, and exact tokens on a real one."""

import math

import pytest

from tests.frontend.lang.programs import ToyBackend
from tests.runtime.engines import assert_idle, make_engine, random_prompt, run_checked, taught_short_answers
from trunkline import SamplingParams, function, select
from trunkline.frontend.lang import Result, State
from trunkline.frontend.lang.scoring import ChoiceLogprobs, decide

# Tokens are characters. "no" has the best mean, "yes" the likeliest first token, "zeta" gains most by the prompt.
LOGPROBS = {"yes": [-0.1, -4.0, -4.0], "no": [-1.0, -0.5], "zeta": [-2.0, -2.0, -2.0, -2.0]}
UNCONDITIONAL = {"yes": [-1.0, -3.0, -3.0], "no": [-1.0, -1.0], "zeta": [-9.0, -9.0, -9.0, -9.0]}


def choose(choices, method, logprobs=LOGPROBS, unconditional=UNCONDITIONAL) -> Result[None]:
    @function
    def program(s: State) -> None:
        s += "?" + select("pick", choices, method)

    return program.using(ToyBackend(logprobs=logprobs, unconditional=unconditional)).run()


def test_length_normalised_takes_the_best_mean() -> None:
    result = choose(["yes", "no", "zeta"], "token_length_normalized")
    assert result["pick"] == "no"
    assert result.meta("pick").scores == pytest.approx([-2.7, -0.75, -2.0])
    assert result.text() == "?no"


def test_greedy_takes_the_likeliest_token_after_token() -> None:
    result = choose(["yes", "no", "zeta"], "greedy_token")
    assert result["pick"] == "yes"
    assert result.meta("pick").scores == (4.0, 0.0, 0.0)


def test_unconditional_takes_the_largest_gain() -> None:
    result = choose(["yes", "no", "zeta"], "unconditional_normalized")
    assert result["pick"] == "zeta"
    assert result.meta("pick").scores == pytest.approx([-2.7 + 7 / 3, 0.25, 7.0])


def test_long_predictable_choice_does_not_win_by_its_length_alone() -> None:
    logprobs = {"Paris": [-0.5], "Antidis": [-3.0, -0.01, -0.01]}
    means = choose(["Antidis", "Paris"], "token_length_normalized", logprobs)
    assert means["pick"] == "Paris"
    assert choose(["Antidis", "Paris"], "greedy_token", logprobs)["pick"] == "Paris"


@pytest.mark.parametrize(("third", "picked"), [(-0.1, "ab"), (-5.0, "a")])
def test_greedy_lets_a_choice_that_has_ended_go_on_with_its_mean(third: float, picked: str) -> None:
    choices = [ChoiceLogprobs((1,), (-1.0,)), ChoiceLogprobs((1, 2), (-1.0, third))]
    assert ["a", "ab"][decide("greedy_token", choices).index] == picked


@pytest.mark.parametrize("method", ["token_length_normalized", "greedy_token", "unconditional_normalized"])
def test_one_choice_is_taken_and_the_first_of_equals_wins(method) -> None:
    assert choose(["no"], method)["pick"] == "no"
    result = choose(["no", "no"], method)
    assert result["pick"] == "no"
    scores = result.meta("pick").scores
    assert scores[0] == scores[1]


def test_rounding_does_not_break_a_tie_between_choices_that_begin_alike() -> None:
    choices = [ChoiceLogprobs((1, 2), (-1.0, -2.0)), ChoiceLogprobs((1, 3), (math.nextafter(-1.0, 0), -3.0))]
    assert decide("greedy_token", choices).index == 0
    tied = [ChoiceLogprobs((1,), (-1.0,)), ChoiceLogprobs((2,), (-1.0,))]
    assert decide("token_length_normalized", tied).index == 0


@pytest.mark.parametrize("prompt", ["The capital of France is", "The capital is ", "The Antidises", "x"])
def test_scores_cover_exactly_the_tokens_of_each_choice(prompt: str) -> None:
    engine = make_engine()
    choices = ["Paris", " Paris", "Antidisestablishmentarianism", "tablish", "tablishment"]

    @function
    def program(s: State) -> None:
        s += prompt + select("pick", choices)

    result = program.using(engine).run()
    plain = make_engine()
    prefix = plain.encode(prompt).tolist()
    expected = []
    for choice in choices:
        option = plain.tokenizer.encode(choice, add_bos=False).tolist()
        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        entries = plain.generate([prefix + option], asked)[0].prompt_logprobs
        own = [entry.token.logprob for entry in entries[len(prefix) :]]
        assert len(own) == len(option)
        expected.append(sum(own) / len(own))
    assert result.meta("pick").scores == pytest.approx(expected, abs=1e-4)
    assert result["pick"] == choices[expected.index(max(expected))]
    assert_idle(engine)


def test_thousand_choices_compute_the_prompt_once_and_run_in_bounded_batches() -> None:
    engine = make_engine(tokens=8192, max_num_seqs=32)
    prompt = "Pick a number, any number, from the long list of numbers that now follows here: "

    @function
    def program(s: State) -> None:
        s += prompt + select("pick", [str(number) for number in range(1000)])

    result = program.using(engine).run()
    meta = result.meta("pick")
    assert len(meta.scores) == 1000
    assert result["pick"] == str(meta.scores.index(max(meta.scores)))
    length = len(engine.encode(prompt))
    assert engine.stats().num_computed_tokens < length + 1000 * 5
    assert_idle(engine)


def test_prompt_scores_from_a_position_on_leave_what_stands_before_to_the_cache() -> None:
    prompt = random_prompt(60, seed=1)
    engine = make_engine()
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=2)
    whole = engine.generate([prompt], asked)[0].prompt_logprobs
    part = engine.generate(
        [prompt], SamplingParams(max_tokens=1, prompt_logprobs=2, prompt_logprobs_start=40)
    )[0]
    assert part.num_cached_tokens == 39
    assert len(part.prompt_logprobs) == 20
    for one, other in zip(whole[40:], part.prompt_logprobs, strict=True):
        assert one.token.token_id == other.token.token_id
        assert one.token.logprob == pytest.approx(other.token.logprob, abs=1e-4)
    assert engine.generate([prompt], asked)[0].prompt_logprobs[0] is None


def test_prompt_scores_from_a_position_on_survive_chunks_and_preemption() -> None:
    alone = make_engine()
    asked = SamplingParams(
        max_tokens=90, temperature=0.0, ignore_eos=True, prompt_logprobs=0, prompt_logprobs_start=30
    )
    prompts = [random_prompt(70, seed=seed) for seed in range(6)]
    expected = [alone.generate([prompt], asked)[0].prompt_logprobs for prompt in prompts]
    crowded = taught_short_answers(make_engine(tokens=320, max_num_batched_tokens=64))
    answers = crowded.generate(prompts, asked)
    for answer, entries in zip(answers, expected, strict=True):
        assert len(answer.prompt_logprobs) == len(entries) == 40
        for one, other in zip(entries, answer.prompt_logprobs, strict=True):
            assert one.token.logprob == pytest.approx(other.token.logprob, abs=1e-4)
    assert crowded.stats().num_preemptions > 0
    assert run_checked(crowded, []) == {}
