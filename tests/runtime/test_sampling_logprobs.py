import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.sampler import slow_logprobs
from tests.runtime.sampling_factories import make_row, sample
from trunkline.runtime.sampling import TokenLogprob, prompt_logprobs

HALVES = [math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)]


def test_the_sampled_token_comes_with_its_rank_and_the_likeliest():
    row = make_row(temperature=0, logit_bias={2: 100}, logprobs=2)
    entry = sample([HALVES], [row]).logprobs[0]
    assert entry.token == TokenLogprob(2, pytest.approx(math.log(0.125)), 3)
    assert entry.top == (
        TokenLogprob(0, pytest.approx(math.log(0.5)), 1),
        TokenLogprob(1, pytest.approx(math.log(0.25)), 2),
    )


def test_logprobs_are_of_the_model_before_every_option():
    plain = sample([HALVES], [make_row(top_k=1, logprobs=4)]).logprobs[0]
    bent = make_row(
        prompt=[0, 1], output=[3], top_k=1, temperature=0.1, min_p=1.0, logprobs=4, repetition_penalty=1.9,
        frequency_penalty=1.0, logit_bias={1: -100}, min_tokens=5, banned_until_min=[2],
    )  # fmt: skip
    assert sample([HALVES], [bent]).logprobs[0].top == plain.top


def test_only_the_rows_that_ask_get_logprobs_each_as_many_as_it_asked_for():
    rows = [make_row(), make_row(logprobs=0), make_row(logprobs=3), make_row(logprobs=20)]
    logprobs = sample([HALVES] * 4, rows).logprobs
    assert {index: len(entry.top) for index, entry in logprobs.items()} == {1: 0, 2: 3, 3: 4}


def test_equal_tokens_rank_by_id():
    entry = sample([[1.0, 2.0, 1.0, 1.0]], [make_row(top_k=1, logit_bias={2: 50}, logprobs=3)]).logprobs[0]
    assert [top.token_id for top in entry.top] == [1, 0, 2]
    assert entry.token == entry.top[2]


def test_impossible_tokens_have_a_finite_floor():
    entry = sample([[0.0, -math.inf, -math.inf]], [make_row(logprobs=3)]).logprobs[0]
    assert [(top.token_id, top.logprob) for top in entry.top] == [(0, 0.0), (1, -9999.0), (2, -9999.0)]
    (scored,) = prompt_logprobs(torch.tensor([[0.0, -math.inf]]), [1], 0)
    assert scored.token == TokenLogprob(1, -9999.0, 2)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(-40, 40).map(lambda eighths: eighths / 8), min_size=9, max_size=9),
            st.integers(0, 8),
        ),
        max_size=70,
    ),
    st.integers(0, 9),
)
def test_prompt_tokens_are_scored_like_the_plain_twin_scores_them(
    rows: list[tuple[list[float], int]], num_top: int
):
    logits = np.array([row for row, _ in rows], dtype=np.float32).reshape(len(rows), 9)
    targets = np.array([target for _, target in rows], dtype=np.int32)
    scored = prompt_logprobs(torch.from_numpy(logits), targets, num_top)
    assert len(scored) == len(rows)
    for row, target, entry in zip(logits, targets.tolist(), scored, strict=True):
        expected = slow_logprobs(row)
        ranking = sorted(range(9), key=lambda token: (-row[token], token))
        assert entry.token == (target, pytest.approx(expected[target], abs=1e-5), ranking.index(target) + 1)
        assert [top.token_id for top in entry.top] == ranking[:num_top]
        assert [top.rank for top in entry.top] == list(range(1, num_top + 1))
        assert [top.logprob for top in entry.top] == pytest.approx(
            expected[ranking[:num_top]].tolist(), abs=1e-5
        )


def test_a_token_scores_the_same_alone_and_among_many():
    logits = torch.tensor(np.random.default_rng(1).normal(size=(130, 4000)) * 5, dtype=torch.float32)
    targets = np.arange(130, dtype=np.int32)
    together = prompt_logprobs(logits, targets, 3)
    alone = [prompt_logprobs(logits[at : at + 1], targets[at : at + 1], 3)[0] for at in (0, 63, 64, 129)]
    assert alone == [together[at] for at in (0, 63, 64, 129)]
