"""The life of a request through steps: order of a step, chunks, reuse, ends, refusals."""

import numpy as np
import pytest

from tests.scheduler.fakes import answer_of, make_house, make_request, make_tokens
from trunkline.scheduler.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    PlanError,
    RequestTooLargeError,
    TransitionError,
)
from trunkline.scheduler.plan import StepResult
from trunkline.scheduler.request import Status
from trunkline.scheduler.state import RequestState


def chunks(plan):
    """What a plan computes: id -> (start, number of tokens)."""
    return {s.id: (s.start, len(s.tokens)) for s in plan.scheduled}


def test_a_request_gets_the_tokens_that_follow_its_prompt():
    house = make_house()
    request = make_request("a", 40, 6)
    house.add(request)
    house.run()
    assert house.answers["a"] == answer_of(request.prompt, 6)
    assert house.ends["a"].finish_reason == "length"
    assert house.is_idle_and_clean()


@pytest.mark.parametrize("budget", [1, 7, 16, 64, 512])
def test_answers_do_not_depend_on_the_budget(budget):
    house = make_house(max_num_batched_tokens=budget)
    requests = [make_request(f"r{i}", 30 + i, 5) for i in range(5)]
    house.add(*requests)
    house.run()
    assert max(plan.num_tokens for plan in house.plans) <= budget
    for request in requests:
        assert house.answers[request.id] == answer_of(request.prompt, 5)


def test_a_step_decodes_first_then_continues_prompts_then_admits():
    house = make_house(max_num_batched_tokens=50, scheduling_policy="fcfs")
    house.add(make_request("decoding", 20, 9))
    house.step()
    house.add(make_request("long", 80), make_request("short", 10))
    house.step()
    house.step()
    assert chunks(house.plans[1]) == {"decoding": (20, 1), "long": (0, 49)}
    assert chunks(house.plans[2]) == {"decoding": (21, 1), "long": (49, 31), "short": (0, 10)}
    assert list(chunks(house.plans[2])) == ["decoding", "long", "short"]


def test_only_uncached_tokens_count_and_the_match_is_made_before_the_cut():
    house = make_house(max_num_batched_tokens=32)
    prompt = make_tokens(160)
    house.add(make_request("first", prompt, 1))
    house.run()
    house.add(make_request("second", np.append(prompt, np.int32(5)), 1))
    house.step()
    assert chunks(house.plans[-1]) == {"second": (160, 1)}
    assert house.ends["second"].num_cached_tokens == 160


def test_a_long_prompt_takes_no_more_than_its_threshold_and_few_prompts_are_cut():
    house = make_house(
        max_num_batched_tokens=64,
        long_prefill_token_threshold=16,
        max_num_partial_prefills=1,
        scheduling_policy="fcfs",
    )
    house.add(make_request("long", 64), make_request("longer", 65), make_request("short", 8))
    house.step()
    assert chunks(house.plans[0]) == {"long": (0, 16), "short": (0, 8)}
    for _ in range(3):
        house.step()
    assert "longer" not in chunks(house.plans[2])
    assert chunks(house.plans[3]) == {"long": (48, 16), "short": (10, 1), "longer": (0, 16)}


def test_without_chunking_prompts_are_computed_whole_even_beyond_the_budget():
    house = make_house(enable_chunked_prefill=False, max_num_batched_tokens=50, scheduling_policy="fcfs")
    house.add(make_request("a", 30), make_request("b", 30), make_request("c", 90))
    house.step()
    house.step()
    house.step()
    assert chunks(house.plans[0]) == {"a": (0, 30)}
    assert chunks(house.plans[1]) == {"a": (30, 1), "b": (0, 30)}
    assert chunks(house.plans[2]) == {"a": (31, 1), "b": (30, 1), "c": (0, 90)}


def test_a_static_batch_runs_to_its_end_before_the_next_begins():
    house = make_house(batching="static", max_num_seqs=2, scheduling_policy="fcfs")
    house.add(*(make_request(name, 20, length) for name, length in [("a", 2), ("b", 5), ("c", 2)]))
    house.step()
    house.add(make_request("d", 20, 1))
    house.run()
    assert [sorted(chunks(plan)) for plan in house.plans] == [
        ["a", "b"],
        ["a", "b"],
        ["b"],
        ["b"],
        ["b"],
        ["c", "d"],
        ["c"],
    ]


def test_a_static_batch_fills_over_several_steps_with_those_who_waited_when_it_opened():
    house = make_house(batching="static", max_num_batched_tokens=32, scheduling_policy="fcfs")
    house.add(make_request("a", 30, 4), make_request("b", 30, 4))
    house.step()
    house.add(make_request("late", 30, 1))
    house.step()
    house.run()
    assert "b" in chunks(house.plans[1])
    first_late = next(i for i, plan in enumerate(house.plans) if "late" in chunks(plan))
    assert all("a" not in chunks(plan) and "b" not in chunks(plan) for plan in house.plans[first_late:])


def test_those_of_a_static_batch_who_wait_for_a_shared_prefix_still_belong_to_it():
    house = make_house(batching="static")
    prompt = make_tokens(64)
    house.add(*(make_request(f"r{i}", prompt, 5) for i in range(3)))
    house.step()
    house.add(make_request("late", prompt, 1))
    house.step()
    assert sorted(chunks(house.plans[1])) == ["r0", "r1", "r2"]
    house.run()
    assert house.runner.num_computed == 64 + 3 + 3 * 4


def test_without_prefix_caching_everything_is_computed():
    house = make_house(enable_prefix_caching=False)
    prompt = make_tokens(64)
    for name in ("a", "b"):
        house.add(make_request(name, prompt, 1))
        house.run()
    assert house.runner.num_computed == 128
    assert house.cache.pool.num_free == house.cache.pool.num_pages


@pytest.mark.parametrize("length", [31, 32, 33])
def test_a_wholly_cached_prompt_computes_its_last_token_again(length):
    house = make_house()
    request = make_request("r0", length, 1)
    for i in range(4):
        house.add(make_request(f"r{i}", request.prompt, 1))
        house.run()
    assert [house.answers[f"r{i}"] for i in range(4)] == [answer_of(request.prompt, 1)] * 4
    assert [house.ends[f"r{i}"].num_cached_tokens for i in range(4)] == [0, *[length - 1] * 3]


def test_a_partly_shared_page_is_copied_before_it_is_written():
    house = make_house()
    prompt = make_tokens(40)
    other = np.concatenate([prompt[:37], make_tokens(10, 9)])
    house.add(make_request("a", prompt, 1))
    house.run()
    house.add(make_request("b", other, 1))
    house.step()
    (source, target) = house.plans[-1].page_copies[0].tolist()
    assert source != target
    assert house.ends["b"].num_cached_tokens == 37
    house.add(make_request("again", prompt, 1))
    house.run()
    assert house.answers["again"] == house.answers["a"] == answer_of(prompt, 1)
    assert house.answers["b"] == answer_of(other, 1)


def test_the_next_turn_computes_only_what_is_new():
    house = make_house()
    history = make_tokens(50)
    for turn in range(4):
        house.add(make_request(f"t{turn}", history, 7))
        house.run()
        # The last token of an answer is sampled, not computed.
        expected = 0 if turn == 0 else len(history) - 9 - 1
        assert house.ends[f"t{turn}"].num_cached_tokens == expected
        history = np.concatenate([history, house.answers[f"t{turn}"], make_tokens(9, turn + 1)]).astype(
            np.int32
        )


def test_wanted_prompt_logits_cap_the_reuse_and_are_asked_for_once():
    house = make_house(max_num_batched_tokens=16)
    prompt = make_tokens(64)
    house.add(make_request("a", prompt, 1))
    house.run()
    house.add(make_request("echo", prompt, 1, logits_from=20))
    house.run()
    asked = [
        position
        for plan in house.plans
        for s in plan.scheduled
        if s.id == "echo" and s.logits_from is not None
        for position in range(max(s.start, s.logits_from), s.start + len(s.tokens))
    ]
    assert asked == list(range(20, 64))
    assert house.ends["echo"].num_cached_tokens == 20


def test_a_stop_token_ends_a_request_but_not_before_its_least_length():
    prompt = make_tokens(20)
    answer = answer_of(prompt, 10)
    house = make_house()
    house.add(
        make_request("stops", prompt, 10, stop_token_ids=frozenset(answer[2:4])),
        make_request("goes on", prompt, 10, stop_token_ids=frozenset(answer[2:4]), min_new_tokens=4),
    )
    house.run()
    assert (house.answers["stops"], house.ends["stops"].stop_token) == (answer[:3], answer[2])
    assert (house.answers["goes on"], house.ends["goes on"].stop_token) == (answer[:4], answer[3])
    assert house.ends["stops"].finish_reason == "stop"


def test_several_sampled_tokens_are_taken_up_to_the_first_that_ends_the_request():
    house = make_house()
    house.add(make_request("a", 20, 3))
    plan = house.scheduler.schedule(0.0)
    (output,) = house.scheduler.update(plan, StepResult({"a": [5, 6, 7, 8]}), 0.1)
    assert (output.tokens, output.finish_reason) == ((5, 6, 7), "length")


def test_a_finish_that_the_caller_saw_keeps_what_is_computed():
    house = make_house()
    house.add(make_request("a", 32, 50))
    for _ in range(10):
        house.step()
    output = house.scheduler.finish("a", "stop", house.now)
    assert (output.finish_reason, output.tokens) == ("stop", ())
    assert house.is_idle_and_clean()
    follow_up = np.concatenate([make_request("a", 32).prompt, house.answers["a"]]).astype(np.int32)
    house.add(make_request("b", follow_up, 1))
    house.run()
    assert house.ends["b"].num_cached_tokens == 41


def test_a_failed_request_leaves_nothing_in_the_cache():
    house = make_house()
    request = make_request("bad", 40, 4)
    house.add(request, make_request("good", 40, 4))
    outputs = house.step(failed={"bad": "logits are not finite"})
    assert [(o.id, o.finish_reason, o.error) for o in outputs if o.id == "bad"] == [
        ("bad", "error", "logits are not finite")
    ]
    assert house.cache.match(request.prompt).num_tokens == 0
    house.run()
    assert house.ends["good"].finish_reason == "length"
    assert house.is_idle_and_clean()


def test_a_request_that_fails_later_keeps_nothing_of_the_failing_step_or_its_open_page():
    house = make_house()
    request = make_request("bad", 20, 9)
    house.add(request)
    for _ in range(4):
        house.step()
    house.step(failed={"bad": "logits are not finite"})
    history = np.concatenate([request.prompt, house.answers["bad"], [0]]).astype(np.int32)
    assert house.cache.match(history).num_tokens == 20
    assert house.is_idle_and_clean()


def test_plans_are_answered_in_their_order_and_at_most_two_are_in_flight():
    house = make_house()
    house.add(make_request("a"))
    plan, ahead = house.scheduler.schedule(0.0), house.scheduler.schedule(0.0)
    with pytest.raises(PlanError, match="step 2 is not answered"):
        house.scheduler.schedule(0.0)
    with pytest.raises(PlanError, match="step 2, which is not the oldest in flight"):
        house.scheduler.update(ahead, StepResult({"a": [1]}), 0.0)
    with pytest.raises(PlanError, match="no token for request 'a'"):
        house.scheduler.update(plan, StepResult(), 0.0)
    with pytest.raises(PlanError, match="2 tokens for request 'a', but step 2 is planned on one"):
        house.scheduler.update(plan, StepResult({"a": [1, 2]}), 0.0)
    house.scheduler.update(plan, house.runner.run(plan), 0.0)
    with pytest.raises(PlanError, match="not the oldest in flight"):
        house.scheduler.update(plan, StepResult(), 0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": make_tokens(0)}, "'r' has an empty prompt"),
        ({"prompt": np.array([1, -1], dtype=np.int32)}, "token -1 at position 1"),
        ({"prompt": np.array([1, 2])}, "int32"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ({"min_new_tokens": 5}, "min_new_tokens must be 0..max_new_tokens"),
        ({"logits_from": -1}, "logits_from must be a position, not -1"),
        ({"namespace": ("color", "red")}, "namespace"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_name(fields, message):
    house = make_house()
    with pytest.raises(InvalidRequestError, match=message):
        house.add(make_request("r", **fields))
    assert not house.scheduler.has_work


def test_an_id_is_free_again_when_its_request_has_ended():
    house = make_house()
    house.add(make_request("a"))
    with pytest.raises(DuplicateRequestError, match="'a' is still alive"):
        house.add(make_request("a"))
    house.run()
    house.answers.clear()
    house.ends.clear()
    house.add(make_request("a"))
    house.run()
    assert house.ends["a"].finish_reason == "length"


def test_what_can_never_fit_is_refused_and_the_rest_goes_on():
    house = make_house(num_pages=16)
    with pytest.raises(RequestTooLargeError, match=r"needs 303 tokens .*the pool holds 256"):
        house.add(make_request("huge", 300, 4))
    house.add(*(make_request(f"r{i}", 20, 4) for i in range(10)))
    house.run()
    assert len(house.ends) == 10
    assert house.is_idle_and_clean()


def test_a_request_that_fills_the_pool_to_the_last_token_runs():
    house = make_house(num_pages=2)
    house.add(make_request("full", 23, 10))
    with pytest.raises(RequestTooLargeError, match="needs 33 tokens"):
        house.add(make_request("one more", 24, 10))
    house.run()
    assert len(house.answers["full"]) == 10


def test_an_unknown_change_of_status_names_request_from_and_to():
    state = RequestState(make_request("a"), 1, 0, ())
    with pytest.raises(TransitionError, match="'a' cannot go from waiting to preempted"):
        state.move(Status.PREEMPTED)
    state.move(Status.FINISHED)
    with pytest.raises(TransitionError, match="from finished to running"):
        state.move(Status.RUNNING)


def test_a_growing_history_leaves_earlier_views_and_the_callers_prompt_alone():
    prompt = make_tokens(5)
    state = RequestState(make_request("a", prompt), 1, 0, ())
    view = state.history
    for token in range(100):
        state.learn(token)
    assert state.history.tolist() == [*prompt.tolist(), *range(100)]
    assert np.array_equal(view, prompt)
    assert state.num_output == 100
