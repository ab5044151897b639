"""The same request gives the same answer, whatever the cache holds and whatever runs beside it."""

import pytest

from tests.runtime.engines import (
    GREEDY,
    PROMPTS,
    assert_idle,
    assert_warm_and_batched,
    cold_answers,
    make_engine,
    random_prompt,
    run_checked,
    taught_short_answers,
    token_lists,
)
from trunkline.runtime.engine import Engine
from trunkline.runtime.sampling import SamplingParams


def test_warm_answers_equal_cold_ones() -> None:
    engine = make_engine()
    assert_warm_and_batched(engine, cold_answers())


@pytest.mark.parametrize("budget", [7, 64, 512])
def test_chunked_answers_equal_cold_ones(budget: int) -> None:
    engine = make_engine(max_num_batched_tokens=budget)
    assert token_lists(engine.generate(PROMPTS, GREEDY)) == cold_answers()
    assert_idle(engine)


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_page_size_does_not_change_answers(page_size: int) -> None:
    engine = make_engine(page_size=page_size)
    for _ in range(2):
        assert token_lists(engine.generate(PROMPTS, GREEDY)) == cold_answers()


def test_an_answer_is_the_same_alone_and_in_a_batch_of_32() -> None:
    prompts = [random_prompt(20 + 7 * number, seed=number) for number in range(32)]
    alone = [make_engine().generate([prompt], GREEDY)[0].token_ids for prompt in prompts]
    assert token_lists(make_engine(tokens=8192).generate(prompts, GREEDY)) == alone


def test_prefix_caching_off_gives_the_same_answers_and_reuses_nothing() -> None:
    engine = make_engine(enable_prefix_caching=False)
    for _ in range(2):
        answers = engine.generate(PROMPTS, GREEDY)
        assert token_lists(answers) == cold_answers()
        assert all(answer.num_cached_tokens == 0 for answer in answers)


def preempted_run(
    params: SamplingParams, prompts: list[list[int]], tokens: int
) -> tuple[list[list[int]], int]:
    engine = taught_short_answers(make_engine(tokens=tokens))
    names = [engine.add_request(prompt, params) for prompt in prompts]
    answers = run_checked(engine, names)
    assert_idle(engine)
    return [answers[name] for name in names], engine.scheduler.stats().num_preemptions


LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def test_preempted_answers_equal_those_of_a_big_pool() -> None:
    prompts = [random_prompt(8 + number, seed=100 + number) for number in range(12)]
    expected, no_preemptions = preempted_run(LONG, prompts, tokens=4096)
    answers, num_preemptions = preempted_run(LONG, prompts, tokens=160)
    assert no_preemptions == 0
    assert num_preemptions >= 3
    assert answers == expected
    assert [len(answer) for answer in answers] == [40] * 12


def test_every_token_of_a_preempted_request_is_streamed_once() -> None:
    engine = taught_short_answers(make_engine(tokens=160))
    prompts = [random_prompt(8 + number, seed=100 + number) for number in range(12)]
    names = [engine.add_request(prompt, LONG) for prompt in prompts]
    counts = dict.fromkeys(names, 0)
    last = {}
    while engine.has_work:
        for output in engine.step():
            counts[output.id] += len(output.token_ids)
            assert output.num_output_tokens == counts[output.id]
            last[output.id] = output
    assert counts == dict.fromkeys(names, 40)
    assert {output.finish_reason for output in last.values()} == {"length"}
    assert sum(output.num_preemptions for output in last.values()) >= 3


PENALISED = SamplingParams(
    temperature=0.0,
    max_tokens=40,
    ignore_eos=True,
    frequency_penalty=0.9,
    presence_penalty=0.7,
    repetition_penalty=1.3,
)


def test_penalties_do_not_depend_on_cache_chunks_or_preemption() -> None:
    prompts = [random_prompt(8 + number, seed=200 + number) for number in range(12)]
    cold = [make_engine().generate([prompt], PENALISED)[0].token_ids for prompt in prompts]
    plain = [make_engine().generate([prompt], LONG)[0].token_ids for prompt in prompts]
    engine = make_engine()
    engine.generate(prompts, PENALISED)
    warm = token_lists(engine.generate(prompts, PENALISED))
    chunked = token_lists(make_engine(max_num_batched_tokens=7).generate(prompts, PENALISED))
    preempted, num_preemptions = preempted_run(PENALISED, prompts, tokens=160)
    assert num_preemptions >= 3
    assert cold == warm == chunked == preempted
    assert cold != plain


SEEDED = SamplingParams(temperature=1.0, top_p=0.95, seed=42, max_tokens=40, ignore_eos=True)
UNSEEDED = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True)
PROMPT = random_prompt(30, seed=7)


def with_mate(mate: SamplingParams | None) -> list[int]:
    engine = make_engine()
    name = engine.add_request(PROMPT, SEEDED)
    if mate is not None:
        engine.add_request(random_prompt(50, seed=8), mate)
    return [token for output in engine.follow([name]) for token in output.token_ids]


def test_a_seeded_text_depends_on_nothing_but_its_request() -> None:
    alone = with_mate(None)
    twice = token_lists(make_engine().generate([PROMPT, PROMPT], SEEDED))
    others = [random_prompt(8 + number, seed=300 + number) for number in range(11)]
    preempted, num_preemptions = preempted_run(SEEDED, [*others, PROMPT], tokens=160)
    assert num_preemptions >= 3
    assert [with_mate(UNSEEDED), with_mate(SEEDED), preempted[-1], *twice] == [alone] * 5


def test_choices_of_one_seed_differ_from_each_other_but_not_between_runs() -> None:
    params = SamplingParams(temperature=1.0, seed=42, n=2, max_tokens=12, ignore_eos=True)
    first, again = (make_engine().generate([PROMPT], params)[0].choices for _ in range(2))
    assert [choice.token_ids for choice in first] == [choice.token_ids for choice in again]
    assert first[0].token_ids != first[1].token_ids


def test_requests_without_a_seed_differ() -> None:
    texts = token_lists(make_engine().generate([PROMPT] * 4, UNSEEDED))
    assert len({tuple(text) for text in texts}) == 4


@pytest.mark.parametrize("length", [31, 32, 33])
def test_a_prompt_that_is_cached_whole_is_answered_alike_every_time(length: int) -> None:
    engine = make_engine()
    prompt = random_prompt(length, seed=length)
    params = SamplingParams(temperature=0.0, max_tokens=1)
    answers = [engine.generate([prompt], params)[0] for _ in range(4)]
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
    assert [answer.num_cached_tokens for answer in answers] == [0] + [length - 1] * 3


def test_a_partly_shared_page_is_never_written_in_place() -> None:
    engine = make_engine()
    system = random_prompt(40, seed=1)
    first, second = system + random_prompt(30, seed=2), system[:37] + random_prompt(30, seed=3)
    expected = [make_engine().generate([prompt], GREEDY)[0].token_ids for prompt in (first, second)]
    for prompt, answer in [(first, expected[0]), (second, expected[1]), (first, expected[0])]:
        generation = engine.generate([prompt], GREEDY)[0]
        assert generation.token_ids == answer
    assert generation.num_cached_tokens == len(first) - 1


def all_at_once(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    names = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    answers = run_checked(engine, names)
    return [answers[name] for name in names]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight", "lof", "priority", "random"])
def test_no_policy_changes_an_answer(policy: str) -> None:
    engine = make_engine(scheduling_policy=policy, max_num_seqs=3, max_num_batched_tokens=50)
    assert all_at_once(engine, PROMPTS) == cold_answers()


@pytest.mark.parametrize("mode", ["swap", "auto", "heuristic"])
def test_swapped_answers_equal_those_of_a_big_pool(mode: str) -> None:
    prompts = [random_prompt(8 + number, seed=100 + number) for number in range(12)]
    expected, _ = preempted_run(LONG, prompts, tokens=4096)
    engine = taught_short_answers(make_engine(tokens=160, preemption_mode=mode, num_host_pages=64))
    names = [engine.add_request(prompt, LONG) for prompt in prompts]
    answers = run_checked(engine, names)
    assert [answers[name] for name in names] == expected
    assert engine.scheduler.stats().num_preemptions >= 3
    assert_idle(engine)
