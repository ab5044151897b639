"""Steps that overlap give what steps in turn give: the same tokens, counts and pages, also where a guess was wrong.

The device of these tests is late: it computes nothing before a result is asked for. See `FakeAsyncRunner`.
"""

import numpy as np
import pytest
import torch

from tests.runtime.engines import (
    GREEDY,
    PROMPTS,
    assert_idle,
    cold_answers,
    make_engine,
    make_late_engine,
    random_prompt,
    run_checked,
    taught_short_answers,
    tiny_model,
    token_lists,
)
from trunkline.runtime.engine import Engine
from trunkline.runtime.sampling import Constraint, SamplingParams

LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def test_cold_warm_chunked_and_batched_answers_are_those_of_steps_in_turn() -> None:
    for settings in (
        {},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 3},
        {"enable_prefix_caching": False},
    ):
        engine, device = make_late_engine(**settings)
        for _ in range(2):
            assert token_lists(engine.generate(PROMPTS, GREEDY)) == cold_answers()
            assert_idle(engine)
        # Every step but the first of a run is launched behind another, every token but the last is pending once.
        assert device.num_ahead >= engine.stats().num_steps - 2
        assert device.num_pending == 2 * 11 * len(PROMPTS)
        assert engine.stats().num_generated_tokens == 2 * 12 * len(PROMPTS)


@pytest.mark.parametrize("settings", [{}, {"preemption_mode": "swap", "num_host_pages": 64}])
def test_preempted_and_swapped_answers_are_those_of_a_big_pool(settings: dict) -> None:
    prompts = [random_prompt(8 + number, seed=100 + number) for number in range(12)]
    expected = token_lists(make_engine().generate(prompts, LONG))
    engine, device = make_late_engine(tokens=160, **settings)
    taught_short_answers(engine)
    names = [engine.add_request(prompt, LONG) for prompt in prompts]
    answers = run_checked(engine, names)
    assert [answers[name] for name in names] == expected
    assert engine.stats().num_preemptions >= 3
    assert device.num_pending > 200
    assert_idle(engine)


SETTINGS = {
    "seeded": SamplingParams(temperature=1.0, top_p=0.95, seed=42, max_tokens=30, ignore_eos=True),
    "min_tokens": SamplingParams(
        temperature=1.0, seed=1, max_tokens=30, min_tokens=9, stop_token_ids=(9, 10)
    ),
    "logprobs": SamplingParams(temperature=0.0, max_tokens=9, logprobs=2, prompt_logprobs=1, ignore_eos=True),
    "penalised": SamplingParams(
        temperature=0.0, max_tokens=30, ignore_eos=True, frequency_penalty=0.9, repetition_penalty=1.3
    ),
    "constrained": SamplingParams(
        temperature=1.0, seed=3, max_tokens=60, constraint=Constraint.regex("(cat|dog){2,5} [0-9]{4}")
    ),
}


def answered(engine: Engine, each: list[SamplingParams]) -> list[tuple]:
    prompts = [random_prompt(20 + number, seed=number) for number in range(len(each))]
    return [
        (
            generation.choices[0].token_ids,
            generation.text,
            generation.finish_reason,
            generation.choices[0].logprobs,
            generation.prompt_logprobs,
        )
        for generation in engine.generate(prompts, each)
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_request_asks_for_is_what_it_gets_without_overlap(name: str) -> None:
    each = [SETTINGS[name]] * 3
    engine, device = make_late_engine()
    assert answered(engine, each) == answered(make_engine(), each)
    assert (device.num_pending == 0) == (name in ("penalised", "constrained"))
    assert_idle(engine)


def test_requests_that_need_their_tokens_wait_for_them_beside_others_that_do_not() -> None:
    each = [*SETTINGS.values(), LONG]
    engine, device = make_late_engine()
    assert answered(engine, each) == answered(make_engine(), each)
    assert device.num_pending > 0


def test_a_stop_token_drops_the_row_that_is_in_flight_behind_it() -> None:
    whole = make_engine().generate([PROMPTS[4]], LONG)[0].token_ids
    stop = next(token for token in whole[5:] if whole.index(token) >= 5)
    count = whole.index(stop) + 1
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop_token_ids=(stop,))
    engine, _ = make_late_engine()
    name = engine.add_request(PROMPTS[4], params)
    outputs = []
    while engine._live:
        outputs += engine.step()
        engine.check()
    assert [token for output in outputs for token in output.token_ids] == whole[:count]
    assert (outputs[-1].id, outputs[-1].finish_reason, outputs[-1].stop) == (name, "stop", stop)
    assert outputs[-1].num_output_tokens == count
    assert engine.has_work
    assert engine.cache.pool.num_in_use > 0
    assert engine.step() == []
    assert not engine.has_work
    assert_idle(engine)
    stats = engine.stats()
    assert (stats.num_generated_tokens, stats.num_computed_tokens) == (count, len(PROMPTS[4]) + count)
    # The row that was dropped computed the stop token itself, which is right. What it sampled is nowhere.
    said = np.array([*PROMPTS[4], *whole[: count + 5]], dtype=np.int32)
    assert engine.cache.match(said).num_tokens == len(PROMPTS[4]) + count
    longer = [*said.tolist(), 77]
    assert (
        engine.generate([longer], GREEDY)[0].token_ids
        == make_engine().generate([longer], GREEDY)[0].token_ids
    )


def test_a_stop_string_ends_the_text_where_it_does_without_overlap() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, stop=("e", "a"))
    prompts = [random_prompt(25, seed=seed) for seed in range(8)]
    engine, _ = make_late_engine()
    found, expected = engine.generate(prompts, params), make_engine().generate(prompts, params)
    assert [(one.text, one.token_ids, one.finish_reason) for one in found] == [
        (one.text, one.token_ids, one.finish_reason) for one in expected
    ]
    assert_idle(engine)
    for prompt, stopped in zip(prompts, found, strict=True):
        longer = prompt + engine.encode(stopped.text + " and").tolist()
        cold = make_engine().generate([longer], GREEDY)[0]
        assert engine.generate([longer], GREEDY)[0].token_ids == cold.token_ids


@pytest.mark.parametrize("steps", range(8))
def test_an_abort_with_two_plans_in_flight_leaks_nothing_and_poisons_nothing(steps: int) -> None:
    engine, device = make_late_engine(max_num_batched_tokens=32)
    prompt = random_prompt(100, seed=1)
    name = engine.add_request(prompt, LONG)
    other = engine.add_request(random_prompt(50, seed=2), LONG)
    for _ in range(steps):
        engine.step()
    engine._launch()
    if engine.scheduler.may_schedule:
        engine._launch()
        assert len(device.launched) == 2
    engine.abort(name)
    engine.check()
    again = engine.add_request(prompt, GREEDY, id=name)
    answers = run_checked(engine, [other, again])
    assert_idle(engine)
    assert answers[again] == make_engine().generate([prompt], GREEDY)[0].token_ids
    assert (
        answers[other][-30:] == make_engine().generate([random_prompt(50, seed=2)], LONG)[0].token_ids[-30:]
    )


class FailingModel:
    """A model whose forward pass number `step` gives NaN for the step's last row, or breaks."""

    def __init__(self, model, step: int, breaks: bool) -> None:
        self._model, self._step, self._breaks = model, step, breaks
        self.dtype, self.device = model.dtype, model.device

    def forward(self, token_ids, backend, logits_rows):
        assert (token_ids >= 0).all()
        logits = self._model.forward(token_ids, backend, logits_rows)
        self._step -= 1
        if self._step == 0:
            if self._breaks:
                raise RuntimeError("out of luck")
            logits[-1] = torch.nan
        return logits


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_failure_with_a_step_in_flight_behind_it_is_contained(breaks: bool) -> None:
    loaded = tiny_model()
    engine, device = make_late_engine(loaded)
    good, bad = random_prompt(40, seed=1), random_prompt(48, seed=2)
    expected = token_lists(make_engine().generate([good, bad], GREEDY))
    engine.runner.model = FailingModel(loaded.model, step=5, breaks=breaks)
    outcome = [generation.choices[0] for generation in engine.generate([good, bad], GREEDY)]
    assert device.num_ahead > 4
    assert outcome[1].finish_reason == "error"
    assert outcome[1].token_ids == expected[1][:4]
    assert outcome[0].token_ids == (expected[0][:4] if breaks else expected[0])
    assert_idle(engine)
    # Four tokens were sampled; what came to the pages with the last of them and later is not in the cache.
    said = np.array([*bad, *expected[1]], dtype=np.int32)
    assert engine.cache.match(said).num_tokens <= 51
    assert token_lists(engine.generate([good, [*bad, *expected[1]]], GREEDY)) == [
        expected[0],
        make_engine().generate([[*bad, *expected[1]]], GREEDY)[0].token_ids,
    ]


def test_a_thousand_rounds_leave_the_pool_as_it_was() -> None:
    engine, _ = make_late_engine(tokens=320, max_num_batched_tokens=48, max_num_seqs=6)
    random = np.random.default_rng(5)
    heads = [random_prompt(40, seed=head) for head in range(3)]
    running: list[str] = []
    for round_number in range(1000):
        if round_number < 980 and random.random() < 0.5:
            prompt = heads[int(random.integers(3))][: int(random.integers(1, 40))]
            params = SamplingParams(
                max_tokens=int(random.integers(1, 12)),
                temperature=float(random.choice([0.0, 1.0])),
                seed=round_number,
                stop_token_ids=tuple(range(0, 49152, 60)) if random.random() < 0.3 else (),
                stop=("e", "th") if random.random() < 0.3 else (),
                repetition_penalty=1.2 if random.random() < 0.05 else 1.0,
            )
            running.append(engine.add_request([*prompt, 50 + round_number], params))
        if running and random.random() < 0.1:
            engine.abort(running.pop(int(random.integers(len(running)))))
        for output in engine.step():
            if output.last:
                running.remove(output.id)
        if round_number % 10 == 0:
            engine.check()
    while engine.has_work:
        engine.step()
    assert_idle(engine)
    engine.flush_cache()
    assert engine.cache.pool.num_free == engine.cache.pool.num_pages
    stats = engine.scheduler.stats()
    assert min(stats.num_stopped, stats.num_length, stats.num_aborted) > 20


def test_steps_in_a_thread_give_the_same_answers() -> None:
    engine = make_engine(overlap=True)
    for _ in range(2):
        assert token_lists(engine.generate(PROMPTS, GREEDY)) == cold_answers()
        assert_idle(engine)
    streamed = list(engine.stream(PROMPTS[3], GREEDY))
    assert [token for output in streamed for token in output.token_ids] == cold_answers()[3]
    assert [output.num_output_tokens for output in streamed] == list(range(1, 13))
