import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.sampler import acceptable_draws, slow_adjusted, slow_distribution
from tests.runtime.sampling_factories import make_row, sample, sample_one
from trunkline.runtime.sampling import Sampler, derive_seed
from trunkline.runtime.sampling.device_drawing import draw_on_device
from trunkline.runtime.sampling.drawing import draw
from trunkline.runtime.sampling.penalties import adjust_logits
from trunkline.runtime.sampling.randomness import uniforms
from trunkline.runtime.sampling.rows import block_weights

INF = math.inf


# --- greedy ---


def test_greedy_takes_the_largest_logit_and_the_lowest_id_of_equals():
    logits = [[1, 3, 2, 3], [5, 5, 5, 5], [-2, -3, -1, -1]]
    assert sample(logits, [make_row(temperature=0)] * 3).tokens.tolist() == [1, 0, 2]


def test_top_k_one_takes_the_lowest_id_of_equals():
    tokens = sample([[1, 3, 2, 3]] * 50, [make_row(top_k=1, seed=seed) for seed in range(50)]).tokens
    assert set(tokens.tolist()) == {1}


def test_greedy_rows_ignore_top_p_and_min_p():
    assert sample_one([1, 3, 2], make_row(temperature=0, top_p=0.1, min_p=0.9)) == 1


def test_an_empty_batch_has_no_tokens():
    output = sample(np.empty((0, 5)), [])
    assert (output.tokens.tolist(), output.failed, output.logprobs) == ([], {}, {})


def test_the_logits_are_left_as_they_were():
    logits = torch.tensor([[1.0, 2.0, 3.0]] * 2)
    rows = [make_row(logit_bias={0: 9}, repetition_penalty=1.5, logprobs=1), make_row(min_p=0.5)]
    Sampler(3, torch.device("cpu")).sample(logits, rows)
    assert logits.tolist() == [[1.0, 2.0, 3.0]] * 2


# --- bias, penalties, bans, by hand ---


def adjusted(logits: list[float], **row: object) -> list[float]:
    return adjust_logits(torch.tensor([logits]), [make_row(**row)])[0].tolist()  # type: ignore[arg-type]


def test_logit_bias_is_added_and_minus_100_forbids():
    assert adjusted([1.0, 2.0, 3.0], logit_bias={0: 2.5, 2: -100}) == [3.5, 2.0, -INF]


def test_repetition_penalty_counts_prompt_and_output_and_each_token_once():
    assert adjusted([2.0, -1.0, 4.0, 3.0], prompt=[0, 0], output=[1], repetition_penalty=2.0) == [
        1.0,
        -2.0,
        4.0,
        3.0,
    ]


def test_frequency_penalty_counts_each_time_in_the_output_and_never_the_prompt():
    assert adjusted([4.0, 4.0, 4.0], prompt=[2, 2], output=[0, 0, 1], frequency_penalty=0.5) == [
        3.0,
        3.5,
        4.0,
    ]


def test_presence_penalty_counts_once_and_never_the_prompt():
    assert adjusted([4.0, 4.0, 4.0], prompt=[2], output=[0, 0, 1], presence_penalty=-0.5) == [4.5, 4.5, 4.0]


def test_bias_comes_before_the_repetition_penalty_and_the_others_after():
    row = {"output": [1], "logit_bias": {1: 6}, "repetition_penalty": 2.0, "presence_penalty": 1.0}
    assert adjusted([0.0, 2.0], prompt=[1], **row) == [0.0, 3.0]


def test_ending_tokens_are_banned_only_below_min_tokens():
    logits = [0.0, 5.0, 1.0]
    below = make_row(temperature=0, min_tokens=2, output=[2], banned_until_min=[1])
    reached = make_row(temperature=0, min_tokens=2, output=[2, 2], banned_until_min=[1])
    assert [sample_one(logits, below), sample_one(logits, reached)] == [2, 1]


def test_ending_tokens_are_not_banned_where_the_constraint_leaves_no_other():
    logits = torch.tensor([[0.0, 5.0, 1.0]] * 2)
    rows = [make_row(temperature=0, min_tokens=2, banned_until_min=[0, 1])] * 2
    masks = {0: np.float32([0, -INF, -INF]), 1: np.float32([0, 0, 0])}
    assert Sampler(3, torch.device("cpu")).sample(logits, rows, masks).tokens.tolist() == [0, 2]


def test_only_the_rows_that_ask_are_adjusted():
    rows = [make_row(), make_row(logit_bias={1: 1}), make_row(output=[0], frequency_penalty=1.0)]
    assert adjust_logits(torch.zeros(3, 2), rows).tolist() == [[0, 0], [0, 1], [-1, 0]]


def test_without_penalties_no_logits_are_copied():
    logits = torch.zeros(2, 3)
    assert adjust_logits(logits, [make_row(), make_row(min_tokens=0, banned_until_min=[1])]) is logits


def test_penalties_do_not_depend_on_how_the_row_came_about():
    """Cold, warm, chunked or resumed: the row is the same, and so is the token (case O18)."""
    logits = np.random.default_rng(3).normal(size=40)
    options = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.3, "seed": 5}
    row = make_row(prompt=range(20), output=[3, 3, 25], **options)
    batch = sample([logits] * 4, [row, make_row(seed=1), row, make_row(temperature=0)]).tokens
    assert batch[0] == batch[2] == sample_one(logits, row)


# --- filters, by hand ---

PROBABILITIES = [0.05, 0.4, 0.15, 0.3, 0.1]


@pytest.mark.parametrize(
    ("options", "reachable"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 0}, {0, 1, 2, 3, 4}),
        ({"top_k": -1}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 500}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.69}, {1, 3}),
        ({"top_p": 0.71}, {1, 2, 3}),
        ({"top_p": 1e-12}, {1}),
        ({"top_k": 3, "top_p": 0.8}, {1, 3}),  # of the three's 0.85, the likeliest two have 0.82
        ({"min_p": 0.26}, {1, 2, 3}),
        ({"min_p": 0.24}, {1, 2, 3, 4}),
        ({"min_p": 1.0}, {1}),
        ({"top_p": 0.99, "min_p": 0.5}, {1, 3}),
        ({"top_k": 4, "top_p": 0.99, "min_p": 0.3}, {1, 2, 3}),
        ({"temperature": 0.01}, {1}),
        ({"temperature": 1e-6}, {1}),
        ({"temperature": 1e-6, "top_p": 0.9}, {1}),
        ({"logit_bias": {1: -100}, "top_k": 1}, {3}),
    ],
)
def test_filters_leave_exactly_these_tokens(options: dict, reachable: set[int]):
    rows = [make_row(seed=seed, **options) for seed in range(2000)]
    assert set(sample([np.log(PROBABILITIES)] * 2000, rows).tokens.tolist()) == reachable


def test_top_k_keeps_the_lowest_ids_of_equal_logits():
    rows = [make_row(top_k=3, seed=seed) for seed in range(300)]
    assert set(sample([[1, 2, 1, 1, 1]] * 300, rows).tokens.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("number", [0.0, 1e-300, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("options", [{}, {"min_p": 0.001}, {"top_k": 200}, {"top_p": 0.999}])
def test_no_number_picks_a_token_without_probability(number: float, options: dict):
    logits = torch.full((1, 300), -INF)
    logits[0, 100:200:7] = torch.linspace(-3, 0, 15)
    token = draw(logits, [make_row(**options).params], logits.max(-1).values.numpy(), np.array([number]))[0]
    assert logits[0, token] > -INF


def test_huge_logits_and_tiny_temperatures_give_no_nan():
    logits = [[3e38, -3e38, 1e30, 0.0]] * 3
    rows = [
        make_row(temperature=1e-6),
        make_row(temperature=1e-6, top_k=2),
        make_row(temperature=2e-6, top_p=0.5),
    ]
    output = sample(logits, rows)
    assert (output.tokens.tolist(), output.failed) == ([0, 0, 0], {})


# --- against the plain twin ---

logit_values = st.integers(-24, 24).map(lambda eighths: eighths / 8)
options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1e-6, 0.3, 1.0, 2.0]),
        "top_k": st.integers(-1, 14),
        "top_p": st.sampled_from([1.0, 0.95, 0.5, 0.01]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.25, 0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.5, -2.0]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "logit_bias": st.dictionaries(st.integers(0, 11), st.sampled_from([-100, -1, 2.5, 100]), max_size=3),
        "min_tokens": st.integers(0, 4),
        "output": st.lists(st.integers(0, 11), max_size=6),
        "prompt": st.lists(st.integers(0, 11), min_size=1, max_size=6),
        "banned_until_min": st.sets(st.integers(0, 11), max_size=2),
        "seed": st.integers(-(2**63), 2**63 - 1),
    }
)


@given(st.lists(st.tuples(st.lists(logit_values, min_size=12, max_size=12), options), min_size=1, max_size=5))
def test_a_batch_draws_what_the_plain_twin_draws(requests: list[tuple[list[float], dict]]):
    rows = [make_row(**chosen) for _, chosen in requests]
    tokens = sample([logits for logits, _ in requests], rows).tokens
    for (logits, _), row, token in zip(requests, rows, tokens.tolist(), strict=True):
        array = np.array(logits, dtype=np.float32)
        number = uniforms([row.seed], [row.num_output_tokens])[0]
        if row.params.is_greedy:
            assert token == int(slow_adjusted(array, row).argmax())
        else:
            assert token in acceptable_draws(array, row, number)


@pytest.mark.parametrize("flatness", [0.0, 0.2, 1.0, 4.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_p": 0.02},
        {"top_k": 300},
        {"top_k": 4700},
        {"top_p": 0.9},
        {"top_p": 0.99, "min_p": 0.3},
        {"top_p": 0.5, "top_k": 1000, "temperature": 1.7},
    ],
)
def test_large_vocabularies_draw_what_the_plain_twin_draws(flatness: float, options: dict):
    """From one token's peak to all tokens equal, so that every depth of the ranked search is reached."""
    rng = np.random.default_rng(7)
    logits = (rng.normal(size=5003) * flatness).astype(np.float16).astype(np.float32)  # float16: many ties
    rows = [make_row(seed=seed, **options) for seed in range(5)]
    tokens = sample([logits] * 5, rows).tokens.tolist()
    for row, token in zip(rows, tokens, strict=True):
        assert token in acceptable_draws(logits, row, uniforms([row.seed], [0])[0])


@pytest.mark.parametrize("flatness", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_p": 0.02},
        {"top_k": 1},
        {"top_k": 300},
        {"top_p": 0.9},
        {"top_p": 0.5, "top_k": 1000, "temperature": 1.7},
    ],
)
def test_a_device_draws_what_the_plain_twin_draws_of_ranked_tokens(flatness: float, options: dict):
    rng = np.random.default_rng(7)
    logits = (rng.normal(size=2003) * flatness).astype(np.float16).astype(np.float32)
    rows = [make_row(seed=seed, **options) for seed in range(40)]
    numbers = uniforms([row.seed for row in rows], [0] * 40)
    tokens = draw_on_device(torch.from_numpy(logits).repeat(40, 1), [row.params for row in rows], numbers)
    ranked = {**options, "top_p": min(options.get("top_p", 1.0), 1.0 - 1e-9)}
    for row, number, token in zip(rows, numbers, tokens.tolist(), strict=True):
        assert token in acceptable_draws(logits, make_row(seed=row.seed, **ranked), number)


def test_a_device_draws_some_token_for_rows_that_have_none():
    rows = torch.tensor([[INF, 1.0], [-INF, -INF], [math.nan, 1.0], [0.0, 5.0]])
    params = [make_row(top_p=0.5).params] * 4
    tokens = draw_on_device(rows, params, np.array([0.0, 0.5, 1.0 - 2.0**-53, 1.0 - 2.0**-53]))
    assert all(token in (0, 1) for token in tokens.tolist())
    assert tokens[3] == 1


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.15}, {"temperature": 0.6}])
def test_tokens_come_as_often_as_their_probability_says(options: dict):
    """Chi-square over 20,000 seeds; the bound is the one-in-a-million value for five degrees of freedom."""
    logits, num_draws = np.array([0.5, -1.0, 1.2, 0.0, 0.3, -0.4], dtype=np.float32), 20_000
    rows = [make_row(seed=seed, **options) for seed in range(num_draws)]
    counts = np.bincount(sample([logits] * num_draws, rows).tokens, minlength=6)
    expected = np.zeros(6)
    for token, probability in slow_distribution(logits, rows[0]):
        expected[token] = probability * num_draws
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 35.9


# --- seeds ---


def generate(rows_of_step, num_tokens: int = 24) -> list[int]:
    """A toy model's tokens for the first row of each step; its logits depend on the last token alone."""
    table = np.random.default_rng(11).normal(size=(50, 50)) * 2
    tokens: list[int] = []
    for _ in range(num_tokens):
        rows = rows_of_step(tokens)
        tokens.append(int(sample([table[row.history[-1]] for row in rows], rows).tokens[0]))
    return tokens


def test_a_seeded_request_gives_one_text_whatever_runs_beside_it():
    """Case O26: alone, with an unseeded mate, with a seeded one, twice at once, after a preemption."""

    def seeded(tokens: list[int]):
        return make_row(prompt=[1, 2], output=tokens, seed=42, top_p=0.9)

    alone = generate(lambda tokens: [seeded(tokens)])
    beside_greedy = generate(lambda tokens: [seeded(tokens), make_row(temperature=0)])
    beside_seeded = generate(lambda tokens: [seeded(tokens), make_row(seed=7, top_k=5), make_row(seed=42)])
    twice = generate(lambda tokens: [seeded(tokens), seeded(tokens)])
    resumed = alone[:9] + generate(lambda tokens: [seeded(alone[:9] + tokens)], 15)
    assert alone == beside_greedy == beside_seeded == twice == resumed
    assert len(set(alone)) > 5


def test_every_row_draws_alone_what_it_draws_in_a_batch():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(12, 3000)) * 2
    kinds = [
        {},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"top_p": 0.97, "temperature": 2},
        {"temperature": 0},
    ]
    rows = [make_row(seed=index, output=[1] * index, **kinds[index % 6]) for index in range(12)]
    alone = [sample_one(logits[index], row) for index, row in enumerate(rows)]
    assert sample(logits, rows).tokens.tolist() == alone


def test_a_rows_weights_are_the_same_bits_alone_and_in_a_batch():
    logits = torch.tensor(np.random.default_rng(5).normal(size=(7, 5003)) * 4, dtype=torch.float32)
    peaks, temperatures = logits.amax(-1).numpy(), [0.5 + 0.25 * row for row in range(7)]
    batch = block_weights(logits, peaks, temperatures)
    for row in range(7):
        alone = block_weights(logits[row : row + 1], peaks[row : row + 1], temperatures[row : row + 1])
        assert torch.equal(alone[0], batch[row])
        assert torch.equal(alone.sum(-1)[0], batch.sum(-1)[row])


def test_the_numbers_of_a_seed_are_fixed_for_good():
    """Literal values: texts of seeded requests must not change with a release unnoticed."""
    assert uniforms([42, 42, -1], [0, 1, 0]).tolist() == pytest.approx(
        [0.9557467261317436, 0.48634953628166855, 0.7408050620013817], abs=0
    )


def test_numbers_of_neighbouring_seeds_and_positions_are_uncorrelated():
    numbers = uniforms(np.repeat(np.arange(300), 300), np.tile(np.arange(300), 300)).reshape(300, 300)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert abs(numbers.mean() - 0.5) < 0.005
    assert len(np.unique(numbers)) == 90_000
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.015


def test_choices_of_one_seed_differ_and_repeat():
    seeds = [derive_seed(42, choice) for choice in range(128)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 128
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert seeds == [derive_seed(42, choice) for choice in range(128)]
    assert not {derive_seed(43, choice) for choice in range(128)} & set(seeds)
    texts = [
        generate(lambda tokens, seed=seed: [make_row(output=tokens, seed=seed)], 8) for seed in seeds[:4]
    ]
    assert all(one != other for one, other in pairwise(texts))


# --- failures ---


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {}, {"top_p": 0.9}, {"logit_bias": {0: -100}, "top_k": 3}]
)
def test_a_row_that_cannot_be_sampled_fails_alone(options: dict):
    good = [0.0, 1.0, 2.0]
    logits = [good, [math.nan, 1, 2], good, [0, INF, 2], [-INF] * 3, good]
    rows = [make_row(temperature=0)] + [make_row(logprobs=1, **options)] * 4 + [make_row(temperature=0)]
    output = sample(logits, rows)
    assert output.failed == {1: "non-finite logits", 3: "non-finite logits", 4: "non-finite logits"}
    assert output.tokens.tolist()[:2] == [2, -1]
    assert output.tokens.tolist()[3:] == [-1, -1, 2]
    assert set(output.logprobs) == {2}


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 2}])
def test_a_row_without_an_allowed_token_says_so(options: dict):
    forbidden = make_row(logit_bias={0: -100, 1: -100}, **options)
    banned = make_row(min_tokens=1, banned_until_min=[0, 1], **options)
    output = sample([[1.0, 2.0]] * 3, [forbidden, banned, make_row(temperature=0)])
    assert output.failed == {0: "every token is forbidden", 1: "every token is forbidden"}
    assert output.tokens.tolist() == [-1, -1, 1]


def test_forbidden_tokens_of_the_model_itself_are_no_failure():
    output = sample([[-INF, 1.0, -INF]], [make_row()])
    assert (output.tokens.tolist(), output.failed) == ([1], {})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_draws_what_the_cpu_draws():
    rng = np.random.default_rng(5)
    logits = torch.tensor(rng.normal(size=(32, 50_000)) * 3, dtype=torch.float16).float()
    kinds = [
        {},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"temperature": 0},
        {"repetition_penalty": 1.2},
    ]
    rows = [make_row(seed=index, output=[1, 5], logprobs=5, **kinds[index % 6]) for index in range(32)]
    cpu = Sampler(50_000, torch.device("cpu")).sample(logits, rows)
    cuda = Sampler(50_000, torch.device("cuda")).sample(logits.cuda(), rows)
    assert cuda.tokens.tolist() == cpu.tokens.tolist()
    for index in range(32):
        assert [top.token_id for top in cuda.logprobs[index].top] == [
            top.token_id for top in cpu.logprobs[index].top
        ]
