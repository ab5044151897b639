"""A plan that is made while another one is in flight; the random lives are in test_churn.py."""

import numpy as np
import pytest

from tests.scheduler.fakes import House, answer_of, make_house, make_request, make_tokens
from trunkline.scheduler.errors import PlanError
from trunkline.scheduler.plan import StepResult


def pending_rows(house: House) -> int:
    return sum(row.pending for plan in house.plans for row in plan.scheduled)


def test_a_decode_is_planned_before_its_token_is_known_and_never_beyond_the_last():
    house = make_house(overlap=True)
    request = make_request("a", 20, max_new_tokens=5)
    house.add(request)
    house.run()
    assert house.answers["a"] == answer_of(request.prompt, 5)
    assert [(row.start, row.pending) for plan in house.plans for row in plan.scheduled] == [
        (0, False),
        (20, True),
        (21, True),
        (22, True),
        (23, True),
    ]
    assert [row.num_output_tokens for plan in house.plans for row in plan.scheduled] == [0, 1, 2, 3, 4]
    assert house.scheduler.stats().num_computed_tokens == 24


def test_nothing_is_planned_ahead_where_nothing_is_left_to_do():
    house = make_house(overlap=True)
    house.add(make_request("a", 20, max_new_tokens=1))
    house.launch()
    assert not house.scheduler.may_schedule
    with pytest.raises(PlanError, match="step 1 is not answered"):
        house.scheduler.schedule(house.now)
    house.land()
    assert house.is_idle_and_clean()


def test_a_chunk_behind_a_chunk_knows_its_tokens():
    house = make_house(overlap=True, max_num_batched_tokens=16)
    house.add(make_request("a", 40, max_new_tokens=3))
    house.run()
    assert [(row.start, len(row.tokens), row.pending) for plan in house.plans for row in plan.scheduled] == [
        (0, 16, False),
        (16, 16, False),
        (32, 8, False),
        (40, 1, True),
        (41, 1, True),
    ]


def test_the_step_behind_a_sequential_sample_waits_for_it():
    house = make_house(overlap=True, max_num_batched_tokens=16)
    house.add(make_request("a", 40, max_new_tokens=4, is_sequential=True))
    house.step()
    assert len(house.in_flight) == 1, "the second chunk needs no token of the first"
    house.run()
    assert pending_rows(house) == 0
    assert len(house.plans) == 6


def test_a_row_behind_a_stop_is_dropped_and_its_pages_come_back_with_it():
    house = make_house(overlap=True, page_size=4)
    prompt = make_tokens(10)
    answer = answer_of(prompt, 8)
    house.add(make_request("a", prompt, max_new_tokens=8, stop_token_ids=frozenset(answer[2:3])))
    for _ in range(3):
        assert "a" not in house.ends
        house.step()
    assert (house.answers["a"], house.ends["a"].stop_token) == (answer[:3], answer[2])
    assert house.cache.pool.num_in_use > 0
    assert house.scheduler.has_work
    assert not house.scheduler.may_schedule
    house.step()
    assert house.is_idle_and_clean()
    assert house.scheduler.stats().num_output_tokens == 3
    history = np.array([*prompt.tolist(), *answer], dtype=np.int32)
    assert house.cache.match(history).num_tokens == 13, (
        "the prompt and three tokens, the stop token itself too"
    )


def test_what_was_computed_from_a_discarded_token_is_not_cached():
    house = make_house(overlap=True, page_size=1)
    prompt = make_tokens(10)
    house.add(make_request("a", prompt, max_new_tokens=8))
    house.step()
    house.launch()
    known = house.answers["a"]
    assert house.scheduler.abort("a", house.now) is not None
    house.scheduler.check()
    house.land()
    assert house.cache.pool.num_in_use > 0
    house.land()
    assert house.is_idle_and_clean()
    history = np.array([*prompt.tolist(), *answer_of(prompt, 8)], dtype=np.int32)
    assert (len(known), house.cache.match(history).num_tokens) == (1, 11)


def test_nothing_of_a_failed_step_or_the_one_behind_it_is_cached():
    house = make_house(overlap=True, page_size=1)
    prompt = make_tokens(10)
    house.add(make_request("a", prompt, max_new_tokens=8))
    house.step()
    house.step(failed={"a": "logits are not finite"})
    assert house.ends["a"].error == "logits are not finite"
    house.run()
    assert house.is_idle_and_clean()
    history = np.array([*prompt.tolist(), *answer_of(prompt, 8)], dtype=np.int32)
    assert house.cache.match(history).num_tokens == 10


def test_the_place_of_one_whose_last_token_is_in_flight_is_filled_at_once():
    house = make_house(overlap=True, max_num_seqs=1)
    house.add(make_request("a", 8, max_new_tokens=2), make_request("b", 8, max_new_tokens=2))
    house.run()
    assert [[row.id for row in plan.scheduled] for plan in house.plans] == [["a"], ["a"], ["b"], ["b"]]


def test_pages_are_taken_from_somebody_only_while_nothing_is_in_flight():
    house = make_house(num_pages=8, page_size=4, overlap=True, enable_prefix_caching=False)
    short = [make_request(f"s{number}", 4, max_new_tokens=1) for number in range(8)]
    for request in short:  # taught to expect short answers
        house.add(request)
    house.run()
    requests = [make_request(name, 8, max_new_tokens=16) for name in "abc"]
    house.add(*requests)
    behind = []
    while house.scheduler.has_work:
        if not house.in_flight:
            house.launch()
        if house.scheduler.may_schedule:
            behind.append(house.launch())
        house.land()
    assert sum(len(plan.preempted) for plan in house.plans) > 0
    assert not any(plan.preempted for plan in behind)
    assert len(behind) > 20
    for request in requests:
        assert house.answers[request.id] == answer_of(request.prompt, 16)


def test_a_more_important_request_takes_a_place_when_nothing_is_in_flight():
    house = make_house(overlap=True, max_num_seqs=1, scheduling_policy="priority")
    house.add(make_request("low", 8, max_new_tokens=9))
    house.step()
    house.add(make_request("high", 8, max_new_tokens=2, priority=1))
    house.run()
    firsts = [plan.scheduled[0].id for plan in house.plans if plan.scheduled]
    assert firsts.index("high") <= 4
    assert house.ends["low"].num_preemptions == 1


def test_a_step_planned_ahead_lasts_from_the_end_of_the_one_before():
    house = make_house()
    scheduler = house.scheduler
    house.add(make_request("a", 8, max_new_tokens=40))
    plan, now = scheduler.schedule(0.0), 0.0
    for _ in range(30):
        ahead = scheduler.schedule(now)
        now += 0.05
        scheduler.update(plan, StepResult({"a": [7]}), now)
        plan = ahead
    assert scheduler.predict_step_seconds(1, 20) == pytest.approx(0.05, rel=0.05)


def test_a_thousand_rounds_leave_the_pool_as_it_was():
    house = make_house(num_pages=24, page_size=4, overlap=True, max_num_batched_tokens=16, check=False)
    rng = np.random.default_rng(3)
    for number in range(1000):
        if len(house.scheduler._states) < 8:
            stops = frozenset(rng.integers(0, 1000, 100).tolist())
            length = int(rng.integers(1, 30))
            house.add(make_request(f"r{number}", make_tokens(length, number % 7), 12, stop_token_ids=stops))
        if rng.random() < 0.2:
            alive = list(house.scheduler._states)
            output = house.scheduler.abort(alive[int(rng.integers(len(alive)))], house.now)
            assert output is not None
            house.note([output])
        house.step()
    house.run()
    house.scheduler.check()
    assert house.is_idle_and_clean()
    house.cache.flush()
    assert house.cache.pool.num_free == 24
