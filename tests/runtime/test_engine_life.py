"""Requests come, stop, fail and go away; nothing of them stays behind."""

import numpy as np
import pytest
import torch

from tests.runtime.engines import (
    GREEDY,
    assert_idle,
    make_engine,
    random_prompt,
    smollm2,
    tiny_model,
    token_lists,
)
from trunkline.errors import ConfigError
from trunkline.runtime.engine import Engine, EngineConfig
from trunkline.runtime.errors import RequestError
from trunkline.runtime.sampling import SamplingParams


def test_300_mixed_requests_leave_the_pool_as_it_was() -> None:
    engine = make_engine(tokens=640, max_num_batched_tokens=64, max_num_seqs=12)
    random = np.random.default_rng(11)
    heads = [random_prompt(48, seed=head) for head in range(4)]
    left, running, outcomes = 300, [], set()
    while left or engine.has_work:
        for _ in range(min(left, int(random.integers(0, 4)))):
            left -= 1
            prompt = heads[int(random.integers(4))][: int(random.integers(1, 48))]
            prompt = prompt + random_prompt(int(random.integers(1, 60)), seed=left)
            params = SamplingParams(
                max_tokens=int(random.integers(1, 40)),
                temperature=float(random.choice([0.0, 1.0])),
                stop_token_ids=tuple(range(0, 49152, 60)) if random.random() < 0.3 else (),
                stop=("e", "th") if random.random() < 0.2 else (),
                n=2 if random.random() < 0.1 else 1,
            )
            running.append(engine.add_request(prompt, params, priority=int(random.integers(2))))
        if running and random.random() < 0.15:
            engine.abort(running.pop(int(random.integers(len(running)))))
        for output in engine.step():
            if output.finish_reason is not None:
                outcomes.add(output.finish_reason)
            if output.last and output.id in running:
                running.remove(output.id)
        engine.check()
    assert outcomes == {"stop", "length"}
    assert engine.scheduler.stats().num_preemptions > 0
    assert engine.scheduler.stats().num_aborted > 0
    assert_idle(engine)
    engine.flush_cache()
    assert engine.cache.pool.num_free == engine.cache.pool.num_pages


@pytest.mark.parametrize("steps", range(8))
def test_an_abort_at_any_point_leaks_nothing(steps: int) -> None:
    engine = make_engine(max_num_batched_tokens=32)
    prompt = random_prompt(100, seed=1)
    name = engine.add_request(prompt, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    for _ in range(steps):
        engine.step()
        engine.check()
    engine.abort(name)
    engine.abort(name)
    engine.check()
    engine.step()
    assert not engine.has_work
    assert_idle(engine)
    assert token_lists(engine.generate([prompt], GREEDY)) == token_lists(
        make_engine().generate([prompt], GREEDY)
    )


def test_what_an_aborted_request_computed_stays_cached() -> None:
    engine = make_engine(max_num_batched_tokens=32)
    prompt = random_prompt(100, seed=1)
    stream = engine.stream(prompt, SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True))
    for _ in range(5):
        next(stream)
    stream.close()
    assert_idle(engine)
    assert not engine.has_work
    assert engine.generate([prompt + random_prompt(9, seed=2)], GREEDY)[0].num_cached_tokens >= 100


def test_interleaved_streams_each_get_their_own_output() -> None:
    engine = make_engine()
    prompts = [random_prompt(20, seed=seed) for seed in range(3)]
    expected = token_lists(engine.generate(prompts, GREEDY))
    streams = [engine.stream(prompt, GREEDY) for prompt in prompts]
    tokens: list[list[int]] = [[], [], []]
    for _ in range(12):
        for number, stream in enumerate(streams):
            tokens[number].extend(next(stream).token_ids)
    assert tokens == expected


class PoisonedModel:
    """A model whose logits are NaN for every prompt that holds the poisonous token, or that breaks altogether."""

    def __init__(self, model, poison: int, breaks: bool) -> None:
        self._model, self._poison, self._breaks = model, poison, breaks
        self.dtype, self.device = model.dtype, model.device

    def forward(self, token_ids, backend, logits_rows):
        logits = self._model.forward(token_ids, backend, logits_rows)
        if (token_ids == self._poison).any():
            if self._breaks:
                raise RuntimeError("out of luck")
            logits = torch.full_like(logits, torch.nan)
        return logits


@pytest.mark.parametrize(("breaks", "reason"), [(False, "non-finite logits"), (True, "RuntimeError")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_failed_request_is_contained(breaks: bool, reason: str) -> None:
    loaded = tiny_model()
    engine = make_engine(loaded)
    good, bad = random_prompt(40, seed=1), [*random_prompt(40, seed=2), 7]
    expected = engine.generate([good], GREEDY)[0].token_ids
    engine.runner.model = PoisonedModel(loaded.model, poison=7, breaks=breaks)

    failed = engine.generate([bad], GREEDY)[0].choices[0]
    assert failed.finish_reason == "error"
    assert reason in (failed.error or "")
    assert failed.token_ids == []
    assert_idle(engine)
    again = engine.generate([good], GREEDY)[0]
    assert again.token_ids == expected
    assert engine.cache.match(np.array(bad, dtype=np.int32)).num_tokens == 0


def test_a_prompt_that_fails_in_its_first_chunk_leaves_nothing_in_the_cache() -> None:
    loaded = tiny_model()
    engine = make_engine(loaded, max_num_batched_tokens=32)
    bad = [*random_prompt(20, seed=2), 7, *random_prompt(80, seed=3)]
    engine.runner.model = PoisonedModel(loaded.model, poison=7, breaks=False)
    failed = engine.generate([bad], GREEDY)[0].choices[0]
    assert (failed.finish_reason, failed.error) == ("error", "non-finite logits")
    assert engine.cache.match(np.array(bad, dtype=np.int32)).num_tokens == 0
    assert_idle(engine)


BAD_IDS = [-1, 49152, 2**31, 2**63]


@pytest.mark.parametrize("token", BAD_IDS)
def test_token_ids_outside_the_vocabulary_are_refused_by_place_and_value(token: int) -> None:
    engine = make_engine()
    good = random_prompt(40, seed=1)
    before = engine.generate([good], GREEDY)[0].token_ids
    with pytest.raises(RequestError, match=rf"prompt\[2\] is {token}, outside the vocabulary of 49152"):
        engine.add_request([1, 2, token], GREEDY)
    assert engine.generate([good], GREEDY)[0].token_ids == before


@pytest.mark.parametrize("token", [True, 1.5, "1", None])
def test_what_is_no_token_id_is_refused(token: object) -> None:
    with pytest.raises(RequestError, match=r"prompt\[0\] is .*, which is no token id"):
        make_engine().add_request([token], GREEDY)  # type: ignore[list-item]


@pytest.mark.parametrize("prompt", ["", [], np.array([], dtype=np.int32)])
def test_an_empty_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        make_engine().add_request(prompt, GREEDY)  # type: ignore[arg-type]


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers() -> None:
    engine = make_engine(tiny_model(max_positions=64))
    with pytest.raises(RequestError, match=r"65 tokens.*64"):
        engine.add_request(random_prompt(65, seed=1), SamplingParams())
    with pytest.raises(RequestError, match=r"max_tokens 60 .*100 tokens together.*64"):
        engine.add_request(random_prompt(40, seed=1), SamplingParams(max_tokens=60))
    answer = engine.generate([random_prompt(63, seed=1)], SamplingParams(temperature=0.0))[0]
    assert (len(answer.token_ids), answer.finish_reason) == (1, "length")


def test_a_batch_with_one_bad_prompt_computes_nothing() -> None:
    engine = make_engine()
    with pytest.raises(RequestError):
        engine.generate([random_prompt(20, seed=1), []], GREEDY)
    assert not engine.has_work
    assert engine.scheduler.stats().num_computed_tokens == 0
    assert_idle(engine)


def test_two_running_requests_cannot_have_one_id() -> None:
    engine = make_engine()
    engine.add_request([5, 6], GREEDY, id="mine")
    with pytest.raises(RequestError, match="'mine' is running"):
        engine.add_request([5, 6], GREEDY, id="mine")
    list(engine.follow(["mine"]))
    engine.add_request([5, 6], GREEDY, id="mine")


def test_a_stop_string_ends_the_text_before_it_streamed_or_not() -> None:
    engine = make_engine(smollm2())
    prompt = engine.chat_prompt([{"role": "user", "content": "Count from one to ten in words."}])
    whole = engine.generate([prompt], SamplingParams(temperature=0.0, max_tokens=40))[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 9]
    params = SamplingParams(temperature=0.0, max_tokens=40, stop=stop)
    generation = engine.generate([prompt], params)[0]
    streamed = list(engine.stream(prompt, params))
    assert generation.text == "".join(output.text for output in streamed) == whole[: whole.index(stop)]
    assert (generation.finish_reason, generation.choices[0].stop) == ("stop", stop)
    assert [output.finish_reason for output in streamed[:-1]] == [None] * (len(streamed) - 1)
    assert_idle(engine)


def test_prompts_that_extend_a_stopped_answer_are_answered_as_if_cold() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, stop=("e", "a"))
    engine = make_engine()
    prompts = [random_prompt(25, seed=seed) for seed in range(8)]
    for prompt, stopped in zip(prompts, engine.generate(prompts, params), strict=True):
        longer = prompt + engine.encode(stopped.text + " and").tolist()
        cold = make_engine().generate([longer], GREEDY)[0]
        assert engine.generate([longer], GREEDY)[0].token_ids == cold.token_ids


def test_the_end_of_sequence_token_ends_a_request_and_is_not_shown() -> None:
    engine = make_engine(smollm2())
    prompt = engine.chat_prompt([{"role": "user", "content": "Say yes."}])
    generation = engine.generate([prompt], SamplingParams(temperature=0.0, max_tokens=200))[0]
    assert (generation.finish_reason, generation.choices[0].stop) == ("stop", 2)
    assert "<|im_end|>" not in generation.text
    assert generation.token_ids[-1] == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_cache_tokens": 8}, "kv_cache_tokens 8 holds no page of 16"),
        ({"dtype": "int3"}, "dtype 'int3'"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype 'int3' is none of auto, int8"),
        ({"max_model_len": 0}, "max_model_len 0"),
        ({"kv_cache_fraction": 1.5}, "kv_cache_fraction 1.5"),
        ({"max_model_len": 4096, "kv_cache_tokens": 8192}, "max_model_len 4096 .* 2048"),
        ({"max_model_len": 1024, "kv_cache_tokens": 512}, "max_model_len 1024 .* 512"),
        ({"attention_backend": "abacus", "kv_cache_tokens": 512}, "'abacus'"),
    ],
)
def test_contradictory_settings_are_one_line(settings: dict, words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words) as caught:
        Engine(EngineConfig(**settings), loaded=tiny_model())
    assert "\n" not in str(caught.value)
