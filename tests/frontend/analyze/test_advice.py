"""Advice: a planted fault is named first, with what its removal brings."""

import random

import numpy as np

from tests.frontend.analyze.traces import block_trace, random_paths, text_trace
from trunkline.frontend.analyze.advice import Advice, in_order
from trunkline.frontend.analyze.analysis import AnalysisOptions, analyse
from trunkline.frontend.analyze.trace import Trace
from trunkline.frontend.analyze.volatile import lru_hit_tokens

RULES = "You are a careful assistant. " + " ".join(f"Rule {n}: answer in {n} words." for n in range(40))
LARGE = 10**6


def first_advice(trace: Trace, size_tokens: int = LARGE) -> Advice:
    advice = analyse(trace, AnalysisOptions(policies=("lfu",), size_tokens=size_tokens)).advice
    assert advice
    return advice[0]


def questions(count: int) -> list[str]:
    return [f"Question {number * 7919 % 1000}: why {'so ' * (number % 5)}?" for number in range(count)]


def test_a_timestamp_in_the_system_prompt_is_named_first_with_its_gain() -> None:
    prompts = [
        f"Now: 2025-03-{1 + n % 28:02}T{n % 24:02}:{n * 7 % 60:02}:{n * 13 % 60:02}Z\n{RULES}\n{question}"
        for n, question in enumerate(questions(40))
    ]
    trace = text_trace(prompts)
    advice = first_advice(trace)
    assert advice.kind == "volatile"
    assert "timestamp" in advice.title
    rules = len(text_trace([RULES]).text.tokens) // 16 * 16
    assert advice.gain_tokens >= 39 * (rules - 32)


def test_an_id_at_the_start_is_named_first() -> None:
    rng = random.Random(1)
    prompts = [f"request {rng.getrandbits(64):016x}f1\n{RULES}\n{question}" for question in questions(30)]
    advice = first_advice(text_trace(prompts))
    assert (advice.kind, "id" in advice.title) == ("volatile", True)


def test_a_shuffled_tool_list_is_named_first() -> None:
    rng = random.Random(2)
    tools = [f"{{tool {name}: does {name} with care and some arguments, twice}}" for name in "abcdefghijkl"]
    prompts = []
    for question in questions(30):
        rng.shuffle(tools)
        prompts.append("Tools\n" + "\n".join(tools) + "\n" + RULES + "\n" + question)
    advice = first_advice(text_trace(prompts))
    assert advice.kind == "volatile"
    assert "list whose lines change order" in advice.title


def test_a_salt_for_each_user_is_named_first() -> None:
    prompts = [f"{RULES}\n{question}" for question in questions(30)]
    advice = first_advice(text_trace(prompts, namespaces=[f"salt{n}" for n in range(30)]))
    assert advice.kind == "namespace"
    assert advice.gain_tokens > 29 * 300


def test_a_small_pool_is_named_first_with_the_size_that_helps() -> None:
    documents = [list(range(100 * n, 100 * n + 20)) for n in range(10)]
    trace = block_trace([documents[n % 10] for n in range(100)], block_size=16)
    advice = first_advice(trace, size_tokens=16 * 60)
    assert advice.kind == "memory"
    assert "instead of 960" in advice.title
    assert advice.gain_tokens > 20_000


def test_a_prefix_shorter_than_a_page_is_named_first() -> None:
    prompts = [
        f"Translate this into French, please, and keep the names: {question}" for question in questions(40)
    ]
    advice = first_advice(text_trace(prompts, page_size=64))
    assert advice.kind == "page"
    assert "less than a whole page of 64 tokens" in advice.title


def test_nothing_is_said_where_nothing_helps() -> None:
    trace = block_trace([list(range(10 * n, 10 * n + 5)) for n in range(20)])
    assert analyse(trace, AnalysisOptions(policies=())).advice == ()


def test_the_gain_of_another_order_is_measured() -> None:
    documents = [list(range(100 * n, 100 * n + 20)) for n in range(10)]
    trace = block_trace([documents[n % 10] for n in range(50)], block_size=16)
    advice = analyse(trace, AnalysisOptions(policies=(), size_tokens=16 * 25)).advice
    order = next(one for one in advice if one.kind == "order")
    assert order.gain_tokens == 40 * 20 * 16


def test_another_order_keeps_paths_and_lengths() -> None:
    trace = block_trace(random_paths(4))
    turned = in_order(trace, np.arange(len(trace))[::-1].copy())
    assert turned.num_tokens.tolist() == trace.num_tokens[::-1].tolist()
    assert lru_hit_tokens(turned, 10**6).sum() == lru_hit_tokens(trace, 10**6).sum()
