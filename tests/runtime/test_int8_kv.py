"""Keys and values in int8: the same answer whatever the cache holds and whatever runs beside it."""

import pytest
import torch

from tests.attention.native_levels import needs_native
from tests.runtime.engines import (
    GREEDY,
    PROMPTS,
    assert_idle,
    assert_warm_and_batched,
    cold_answers,
    make_engine,
    random_prompt,
    run_checked,
    smollm2,
    taught_short_answers,
    tiny_model,
    token_lists,
)
from trunkline.attention import KVPool, native
from trunkline.errors import ConfigError
from trunkline.runtime.engine import Engine, EngineConfig
from trunkline.runtime.sampling import SamplingParams

LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def int8_engine(**options: object) -> Engine:
    return make_engine(kv_cache_dtype="int8", **options)  # type: ignore[arg-type]


@needs_native
def test_warm_and_batched_answers_equal_cold_ones() -> None:
    assert_warm_and_batched(int8_engine(), cold_answers(kv_cache_dtype="int8"))


@needs_native
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_chunked_answers_equal_cold_ones(page_size: int) -> None:
    engine = int8_engine(max_num_batched_tokens=7, page_size=page_size)
    assert token_lists(engine.generate(PROMPTS, GREEDY)) == cold_answers(kv_cache_dtype="int8")
    assert_idle(engine)


@needs_native
@pytest.mark.parametrize("options", [{}, {"preemption_mode": "swap", "num_host_pages": 64}])
def test_preempted_and_swapped_answers_equal_those_of_a_big_pool(options: dict[str, object]) -> None:
    prompts = [random_prompt(8 + number, seed=100 + number) for number in range(12)]
    expected = token_lists(int8_engine().generate(prompts, LONG))
    engine = taught_short_answers(int8_engine(tokens=160, **options))
    names = [engine.add_request(prompt, LONG) for prompt in prompts]
    answers = run_checked(engine, names)
    assert [answers[name] for name in names] == expected
    assert engine.scheduler.stats().num_preemptions >= 3
    assert_idle(engine)


@needs_native
def test_rounding_changes_some_answer_of_a_model_of_noise() -> None:
    assert token_lists(make_engine().generate(PROMPTS, GREEDY)) != cold_answers(kv_cache_dtype="int8")


@needs_native
def test_the_embedded_model_knows_what_it_knew() -> None:
    engine = make_engine(smollm2(), kv_cache_dtype="int8")
    answer = engine.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=3))[0]
    assert answer.text.startswith(" Paris")


@needs_native
def test_a_share_of_memory_holds_more_tokens() -> None:
    config = smollm2().config.attention_config(16)
    in_bfloat16, in_int8 = (KVPool.page_bytes(config, dtype) for dtype in (torch.bfloat16, torch.int8))
    assert in_bfloat16 / in_int8 == 128 / 68
    engine = Engine(EngineConfig(kv_cache_dtype="int8", kv_cache_fraction=1e-3), loaded=smollm2())
    in_float32 = Engine(EngineConfig(kv_cache_fraction=1e-3), loaded=smollm2())
    assert engine.stats().num_pages_free > 3 * in_float32.stats().num_pages_free


@needs_native
def test_only_the_cpu_backend_takes_int8() -> None:
    config = EngineConfig(kv_cache_tokens=512, kv_cache_dtype="int8", attention_backend="torch")
    with pytest.raises(ConfigError, match=r"kv_cache_dtype 'int8' needs the cpu attention backend .* torch"):
        Engine(config, loaded=tiny_model())


def test_without_the_kernels_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "unavailable", lambda: "no compiler")
    with pytest.raises(ConfigError, match="kv_cache_dtype 'int8': no compiler"):
        Engine(EngineConfig(kv_cache_tokens=512, kv_cache_dtype="int8"), loaded=tiny_model())
