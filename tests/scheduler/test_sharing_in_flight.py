"""One computes, the others wait and share: bursts of equal or similar prompts."""

import numpy as np
import pytest

from tests.scheduler.fakes import answer_of, make_house, make_request, make_tokens
from trunkline.scheduler.in_flight import InFlight
from trunkline.scheduler.state import RequestState


def test_a_burst_of_equal_prompts_computes_them_once():
    house = make_house(num_pages=1024, max_num_batched_tokens=512)
    prompt = make_tokens(4000)
    house.add(*(make_request(f"r{i}", prompt, 1) for i in range(64)))
    house.run()
    assert house.runner.num_computed == 4000 + 63 * 1
    assert {tuple(tokens) for tokens in house.answers.values()} == {tuple(answer_of(prompt, 1))}


@pytest.mark.parametrize("length", [4000, 4005])
def test_eight_twins_in_chunks_of_256_compute_their_prompt_once_and_a_tail_each(length):
    house = make_house(num_pages=1024, max_num_batched_tokens=256)
    prompt = make_tokens(length)
    house.add(*(make_request(f"r{i}", prompt, 1) for i in range(8)))
    house.run()
    assert house.runner.num_computed == length + 7 * 1


def test_prompts_that_share_only_a_beginning_join_where_they_part():
    house = make_house(
        num_pages=512, max_num_batched_tokens=128, long_prefill_token_threshold=64, max_num_partial_prefills=4
    )
    shared = make_tokens(320)
    house.add(make_request("owner", np.concatenate([shared, make_tokens(640, 1)]), 1))
    house.add(*(make_request(f"r{i}", np.concatenate([shared, make_tokens(32, i + 2)]), 1) for i in range(3)))
    house.run()
    assert house.runner.num_computed == 320 + 640 + 3 * 32
    assert list(house.ends)[-1] == "owner"


def test_those_who_wait_do_not_hold_up_others():
    house = make_house(
        num_pages=512, max_num_batched_tokens=128, scheduling_policy="fcfs", long_prefill_token_threshold=64
    )
    prompt = make_tokens(640)
    house.add(*(make_request(f"twin{i}", prompt, 1) for i in range(5)), make_request("other", 30, 1))
    house.step()
    assert [s.id for s in house.plans[0].scheduled] == ["twin0", "other"]


@pytest.mark.parametrize("moment", ["between plan and result", "between steps"])
def test_when_the_owner_is_aborted_the_next_one_computes(moment):
    house = make_house(num_pages=512, max_num_batched_tokens=64)
    prompt = make_tokens(640)
    house.add(*(make_request(f"r{i}", prompt, 1) for i in range(4)))
    for _ in range(3):
        house.step()
    if moment == "between steps":
        house.scheduler.abort("r0", house.now)
        computed = 192
    else:
        plan = house.scheduler.schedule(house.now)
        house.scheduler.abort("r0", house.now)
        house.scheduler.check()
        house.note(house.scheduler.update(plan, house.runner.run(plan), house.now))
        computed = 256
    house.run()
    assert house.runner.num_computed == computed + (640 - computed) + 2
    assert sorted(house.ends) == ["r1", "r2", "r3"]
    assert house.is_idle_and_clean()


def test_a_waiter_is_woken_when_its_owner_has_computed_nothing_for_as_long_as_the_patience():
    hashes = (11, 12, 13)
    owner = RequestState(make_request("owner"), 1, 0, hashes)
    waiter = RequestState(make_request("waiter"), 2, 0, hashes)
    in_flight = InFlight(patience=3)
    owner.progress_step = 5
    in_flight.register(owner, 0)
    in_flight.park(waiter, owner, 0)
    assert list(in_flight.wake(8, limit=10)) == []
    assert list(in_flight.wake(9, limit=10)) == [waiter]
    assert in_flight.owner_of(waiter, 0) is None


def test_admitting_twins_of_a_cached_prompt_takes_one_step_not_one_step_each():
    house = make_house(max_num_batched_tokens=512)
    prompt = make_tokens(256)
    house.add(*(make_request(f"r{i}", prompt, 1) for i in range(40)))
    house.run()
    assert len(house.plans) == 2


def test_two_thousand_twins_cost_a_bounded_amount_of_work_a_step():
    house = make_house(num_pages=2048, max_num_batched_tokens=256, max_num_seqs=64, check=False)
    prompt = make_tokens(256)
    house.add(*(make_request(f"r{i}", prompt, 1) for i in range(2000)))
    before = house.scheduler.stats()
    most = 0
    while house.scheduler.has_work:
        house.step()
        after = house.scheduler.stats()
        most = max(
            most,
            after.candidates_examined
            + after.match_updates
            - before.candidates_examined
            - before.match_updates,
        )
        before = after
    assert most <= 64 + 64 + 64 + 16
    assert house.runner.num_computed == 256 + 1999
    house.scheduler.check()
