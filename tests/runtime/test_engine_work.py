"""Shared prefixes are computed once: tokens counted, not timed."""

import json

import pytest

from tests.runtime.engines import (
    DATA,
    GREEDY,
    assert_idle,
    embedded_tokenizer,
    make_engine,
    random_prompt,
    smollm2,
    taught_short_answers,
    token_lists,
)
from trunkline.errors import TrunklineError
from trunkline.runtime.engine import Engine
from trunkline.runtime.errors import RequestError
from trunkline.runtime.sampling import SamplingParams

PAGE = 16


def gsm8k_prompts() -> tuple[str, list[str]]:
    """Eight worked examples, and 64 questions, from GSM8K."""
    lines = (DATA / "gsm8k_8_train_64_test.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    examples = "\n\n".join(
        f"Question: {row['question']}\nAnswer: {row['answer']}" for row in rows if row["split"] == "train"
    )
    return examples, [f"\n\nQuestion: {row['question']}\nAnswer:" for row in rows if row["split"] == "test"]


def computed_tokens(engine: Engine) -> int:
    return engine.scheduler.stats().num_computed_tokens


def length_of_common_prefix(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def ideal_computed(prompts: list[list[int]]) -> int:
    """What must be computed where each token-exact shared prefix is computed once, at least one token a prompt."""
    total = 0
    for number, prompt in enumerate(prompts):
        longest = max((length_of_common_prefix(prompt, other) for other in prompts[:number]), default=0)
        total += len(prompt) - min(longest, len(prompt) - 1)
    return total


def test_64_gsm8k_questions_compute_their_worked_examples_once() -> None:
    examples, questions = gsm8k_prompts()
    engine = Engine(make_engine(smollm2(), tokens=16384).config, loaded=smollm2())
    prompts = [engine.encode(examples + question).tolist() for question in questions]
    head = len(engine.encode(examples))
    assert len(questions) == 64
    assert head > 900

    first = engine.generate(prompts[:1], SamplingParams(temperature=0.0, max_tokens=1))[0]
    assert computed_tokens(engine) == len(prompts[0])
    assert first.num_cached_tokens == 0
    answers = engine.generate(prompts[1:], SamplingParams(temperature=0.0, max_tokens=1))

    # Every question begins with the same tokens as the first, beyond the examples: "\n\nQuestion:". What the
    # questions share among themselves beyond that is found too, or not, depending on which ran beside which.
    shared = min(length_of_common_prefix(prompts[0], prompt) for prompt in prompts[1:])
    assert shared >= head
    assert all(answer.num_cached_tokens >= shared for answer in answers)
    reported = sum(len(prompt) for prompt in prompts) - sum(answer.num_cached_tokens for answer in answers)
    assert computed_tokens(engine) == reported
    assert ideal_computed(prompts) <= computed_tokens(engine)
    assert computed_tokens(engine) <= len(prompts[0]) + sum(len(prompt) - shared for prompt in prompts[1:])
    assert_idle(engine)


def test_one_after_the_other_the_computed_tokens_are_exactly_the_unshared_ones() -> None:
    examples, questions = gsm8k_prompts()
    engine = make_engine(tokens=32768)
    prompts = [embedded_tokenizer().encode(examples + question).tolist() for question in questions[:24]]
    for prompt in prompts:
        engine.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1))
    assert computed_tokens(engine) == ideal_computed(prompts)


def test_a_burst_of_equal_prompts_is_computed_once() -> None:
    engine = make_engine(tokens=8192, max_num_batched_tokens=256)
    prompt = random_prompt(1500, seed=1)
    answers = engine.generate([prompt] * 16, SamplingParams(temperature=0.0, max_tokens=1))
    assert computed_tokens(engine) == 1500 + 15
    assert len({tuple(tokens) for tokens in token_lists(answers)}) == 1


def test_each_turn_of_a_chat_computes_only_its_new_tokens() -> None:
    engine = make_engine(smollm2(), tokens=4096)
    params = SamplingParams(temperature=0.0, max_tokens=24)
    messages = []
    known: list[int] = []  # what the cache has seen: the last prompt and all of its answer but the last token
    for question in (
        "Name a river.",
        "Where does it begin?",
        "Which cities lie on it?",
        "And how long is it?",
    ):
        messages.append({"role": "user", "content": question})
        prompt = engine.chat_prompt(messages)
        before = computed_tokens(engine)
        answer = engine.generate([prompt], params)[0]
        shared = length_of_common_prefix(prompt, known)
        assert shared == len(known) or not known
        assert answer.num_cached_tokens == shared
        assert computed_tokens(engine) - before == len(prompt) - shared + len(answer.token_ids) - 1
        messages.append({"role": "assistant", "content": answer.text})
        known = prompt + answer.token_ids[:-1]
    assert len(prompt) > 100


def test_output_logprobs_do_not_cost_the_prompt_again() -> None:
    engine = make_engine()
    prompt = random_prompt(200, seed=3)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)
    cold, warm = (engine.generate([prompt], params)[0] for _ in range(2))
    assert warm.num_cached_tokens == 199
    assert warm.token_ids == cold.token_ids
    assert warm.choices[0].logprobs is not None
    assert [entry.token.token_id for entry in warm.choices[0].logprobs] == warm.token_ids
    assert all(len(entry.top) == 2 for entry in warm.choices[0].logprobs)


@pytest.mark.parametrize("budget", [7, 512])
def test_prompt_logprobs_are_the_same_cold_and_warm(budget: int) -> None:
    engine = make_engine(max_num_batched_tokens=budget)
    prompt = random_prompt(40, seed=4)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    cold, warm = (engine.generate([prompt], params)[0] for _ in range(2))
    for generation in (cold, warm):
        assert generation.prompt_logprobs is not None
        assert len(generation.prompt_logprobs) == 40
        assert generation.prompt_logprobs[0] is None
        tokens = [entry.token.token_id for entry in generation.prompt_logprobs[1:] if entry is not None]
        assert tokens == prompt[1:]
    assert warm.num_cached_tokens == 0
    assert cold.token_ids == warm.token_ids
    pairs = zip(cold.prompt_logprobs[1:], warm.prompt_logprobs[1:], strict=True)
    assert all(one.token.logprob == pytest.approx(other.token.logprob, abs=1e-5) for one, other in pairs)


def test_prompt_logprobs_survive_preemption() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, prompt_logprobs=0)
    prompts = [random_prompt(8 + number, seed=500 + number) for number in range(12)]
    expected = make_engine().generate(prompts, params)
    engine = taught_short_answers(make_engine(tokens=160))
    answers = engine.generate(prompts, params)
    assert engine.scheduler.stats().num_preemptions >= 3
    assert token_lists(answers) == token_lists(expected)
    for answer, other in zip(answers, expected, strict=True):
        assert answer.prompt_logprobs is not None
        assert other.prompt_logprobs is not None
        assert len(answer.prompt_logprobs) == len(answer.prompt_token_ids)
        pairs = zip(answer.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True)
        assert all(one.token.logprob == pytest.approx(two.token.logprob, abs=1e-5) for one, two in pairs)


def test_a_prompt_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    engine = make_engine(tokens=256)
    with pytest.raises(RequestError, match=r"300 tokens.*256"):
        engine.add_request(random_prompt(300, seed=1), SamplingParams(max_tokens=10))
    answers = engine.generate([random_prompt(20, seed=seed) for seed in range(10)], GREEDY)
    assert [len(answer.token_ids) for answer in answers] == [12] * 10


def test_a_request_that_fills_the_pool_to_its_last_token_is_answered() -> None:
    engine = make_engine(tokens=32)
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    answer = engine.generate([random_prompt(31, seed=2)], params)[0]
    assert (len(answer.token_ids), answer.finish_reason) == (1, "length")
    with pytest.raises(RequestError, match=r"32 tokens.*32"):
        engine.add_request(random_prompt(32, seed=2), SamplingParams(max_tokens=10))
    assert_idle(engine)


def test_two_requests_that_need_one_page_more_than_there_is_both_finish() -> None:
    engine = make_engine(tokens=64)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    answers = engine.generate([random_prompt(24, seed=1), random_prompt(24, seed=2)], params)
    assert [len(answer.token_ids) for answer in answers] == [20, 20]
    assert_idle(engine)


def test_every_error_of_ours_is_a_trunkline_error() -> None:
    assert issubclass(RequestError, TrunklineError)
