"""A request can be aborted at every moment of its life, and nothing of it stays behind."""

import numpy as np
import pytest

from tests.scheduler.fakes import make_house, make_request, make_tokens


def first_waits(house):
    house.add(make_request("before", 20, 30))
    house.step()
    house.add(make_request("victim", 64, 8))


def waits_for_room(house):
    house.add(make_request("before", 100, 20))
    house.step()
    house.add(make_request("victim", 200, 8))
    house.step()
    assert house.scheduler.stats().now_waiting == 1


def waits_for_a_twin(house):
    prompt = make_tokens(100)
    house.add(make_request("before", prompt, 8), make_request("victim", prompt, 8))
    house.step()
    house.add(make_request("third", prompt, 8))
    house.step()


def in_a_chunk(house):
    house.add(make_request("victim", 100, 8))
    house.step()
    house.step()


def at_the_first_token(house):
    house.add(make_request("victim", 20, 8))
    house.step()


def in_the_middle_of_its_answer(house):
    in_a_chunk(house)
    for _ in range(7):
        house.step()


def before_the_last_token(house):
    house.add(make_request("victim", 20, 3))
    house.step()
    house.step()


def preempted(house):
    house.add(*(make_request(f"short{i}", 5, 1) for i in range(8)))
    house.run()
    house.add(make_request("before", 112, 60), make_request("victim", 112, 60))
    while not house.scheduler.stats().now_preempted:
        house.step()


MOMENTS = [
    first_waits,
    waits_for_room,
    waits_for_a_twin,
    in_a_chunk,
    at_the_first_token,
    in_the_middle_of_its_answer,
    before_the_last_token,
    preempted,
]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("in_flight", [False, True], ids=["between steps", "between plan and result"])
def test_an_abort_at_any_moment_leaves_nothing_behind(moment, in_flight):
    house = make_house(num_pages=16, max_num_batched_tokens=32)
    moment(house)
    if in_flight:
        plan = house.scheduler.schedule(house.now)
    output = house.scheduler.abort("victim", house.now)
    assert (output.id, output.finish_reason, output.tokens) == ("victim", "abort", ())
    assert house.scheduler.abort("victim", house.now) is None
    house.scheduler.check()
    if in_flight:
        house.note(house.scheduler.update(plan, house.runner.run(plan), house.now))
        house.scheduler.check()
    assert "victim" not in house.ends
    house.run()
    assert house.is_idle_and_clean()
    assert all(end.finish_reason == "length" for end in house.ends.values())


def test_pages_of_a_request_aborted_in_flight_are_given_back_only_with_the_result():
    house = make_house(max_num_batched_tokens=32)
    house.add(make_request("victim", 64, 4))
    plan = house.scheduler.schedule(0.0)
    house.scheduler.abort("victim", 0.0)
    assert house.cache.pool.num_in_use == 2
    assert house.scheduler.has_work
    house.scheduler.update(plan, house.runner.run(plan), 0.1)
    assert house.cache.pool.num_in_use == 0
    assert not house.scheduler.has_work


def test_what_an_aborted_request_has_computed_stays_cached():
    house = make_house(max_num_batched_tokens=48)
    prompt = make_tokens(100)
    house.add(make_request("gone", prompt, 4))
    house.step()
    house.scheduler.abort("gone", house.now)
    house.add(make_request("next turn", prompt, 1))
    house.run()
    assert house.ends["next turn"].num_cached_tokens == 48


def test_the_id_of_a_request_aborted_in_flight_can_be_used_at_once():
    house = make_house()
    house.add(make_request("same", make_tokens(20, 1), 4))
    plan = house.scheduler.schedule(0.0)
    house.scheduler.abort("same", 0.0)
    house.add(make_request("same", make_tokens(30, 2), 4))
    result = house.runner.run(plan)
    house.runner.folds.clear()
    house.note(house.scheduler.update(plan, result, 0.1))
    house.run()
    assert len(house.answers["same"]) == 4
    assert house.is_idle_and_clean()


def test_unknown_and_finished_requests_are_not_aborted():
    house = make_house()
    house.add(make_request("a", 20, 1))
    house.run()
    assert house.scheduler.abort("a", house.now) is None
    assert house.scheduler.abort("never seen", house.now) is None
    assert house.scheduler.stats().num_aborted == 0


def test_a_thousand_rounds_leave_the_pool_as_it_was():
    house = make_house(num_pages=16, max_num_batched_tokens=24, check=False)
    rng = np.random.default_rng(0)
    for i in range(1000):
        house.add(make_request(f"r{i}", int(rng.integers(1, 60)), 6))
        for _ in range(int(rng.integers(0, 3))):
            house.step()
        house.scheduler.abort(f"r{int(rng.integers(max(0, i - 3), i + 1))}", house.now)
    house.run()
    house.scheduler.check()
    house.cache.flush()
    assert house.is_idle_and_clean()
    assert house.cache.pool.num_free == 16
