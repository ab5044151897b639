"""Classes of importance, and shares between namespaces."""

import pytest

from tests.scheduler.fakes import make_house, make_request, make_tokens


def first_steps(house) -> dict[str, int]:
    """The step in which each request was first scheduled."""
    first: dict[str, int] = {}
    for plan in house.plans:
        for scheduled in plan.scheduled:
            first.setdefault(scheduled.id, plan.step)
    return first


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight", "lof", "random", "priority"])
def test_a_higher_class_goes_first_under_every_policy(policy):
    house = make_house(max_num_seqs=1, scheduling_policy=policy, priority_preemption=False)
    house.add(*(make_request(f"p{p}-{i}", 20, 2, priority=p) for i, p in enumerate([0, 2, 1, 2, 0])))
    house.run()
    first = first_steps(house)
    assert [name[:2] for name in sorted(first, key=first.get)] == ["p2", "p2", "p1", "p0", "p0"]


def test_a_more_important_request_takes_the_slot_of_the_least_important_latest_one():
    house = make_house(max_num_seqs=2, scheduling_policy="priority")
    house.add(make_request("a", 20, 20, priority=1), make_request("b", 20, 20), make_request("c", 20, 20))
    house.step()
    house.add(make_request("urgent", 20, 3, priority=5))
    house.step()
    assert house.plans[1].preempted == ("b",)
    assert {s.id for s in house.plans[1].scheduled} == {"a", "urgent"}
    house.run()
    assert first_steps(house)["c"] > first_steps(house)["b"]
    assert house.ends["b"].num_preemptions == 1
    assert house.is_idle_and_clean()


def test_a_more_important_request_takes_the_memory_of_less_important_ones_but_not_in_vain():
    house = make_house(num_pages=20, page_size=4, scheduling_policy="priority")
    house.add(make_request("high", 20, 8, priority=3), *(make_request(f"low{i}", 16, 8) for i in range(2)))
    house.step()
    house.add(make_request("too big", 64, 8, priority=2))
    house.step()
    assert house.plans[-1].preempted == ()
    house.add(make_request("fits", 24, 4, priority=2))
    house.scheduler.abort("too big", house.now)
    house.step()
    assert house.plans[-1].preempted == ("low1",)
    assert "fits" in {s.id for s in house.plans[-1].scheduled}


def test_prompt_logits_are_asked_for_once_even_when_the_prompt_is_preempted_in_its_middle():
    house = make_house(max_num_seqs=1, max_num_batched_tokens=16, scheduling_policy="priority")
    house.add(make_request("echo", 64, 3, logits_from=5))
    house.step()
    house.step()
    house.add(make_request("urgent", 16, 2, priority=1))
    house.run()
    asked = [
        position
        for plan in house.plans
        for s in plan.scheduled
        if s.logits_from is not None
        for position in range(max(s.start, s.logits_from), min(s.start + len(s.tokens), 64))
    ]
    assert house.ends["echo"].num_preemptions == 1
    assert asked == list(range(5, 64))


def test_without_the_switch_nobody_is_preempted_for_importance():
    house = make_house(max_num_seqs=1, scheduling_policy="lpm")
    house.add(make_request("low", 20, 10))
    house.step()
    house.add(make_request("high", 20, 1, priority=9))
    house.run()
    assert house.scheduler.stats().num_preemptions == 0
    assert list(house.ends) == ["low", "high"]


def served_tokens(house) -> dict[str, int]:
    totals: dict[str, int] = {}
    for plan in house.plans:
        for scheduled in plan.scheduled:
            name = scheduled.id.split("-")[0]
            totals[name] = totals.get(name, 0) + len(scheduled.tokens)
    return totals


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
def test_a_crowd_in_one_namespace_leaves_the_others_their_share(policy):
    house = make_house(
        max_num_seqs=1, max_num_batched_tokens=64, scheduling_policy=policy, fair_share_quantum=100
    )
    for i in range(40):
        house.add(make_request(f"crowd-{i}", 40, 4, namespace=("tenant", "crowd")))
    for i in range(10):
        house.add(make_request(f"guest-{i}", 40, 4, namespace=("tenant", "guest")))
    while "guest-9" not in house.ends:
        house.step()
        totals = served_tokens(house)
        if 2 <= len([name for name in house.ends if name.startswith("guest")]) < 9:
            # The quantum, and one request that is under way when the turn changes.
            assert abs(totals["crowd"] - totals["guest"]) <= 100 + 44
    assert len([name for name in house.ends if name.startswith("crowd")]) <= 14


def test_the_share_of_a_namespace_is_served_in_a_row_so_that_prefixes_stay_together():
    house = make_house(
        num_pages=24, max_num_seqs=1, scheduling_policy="lpm", fair_share_quantum=200, page_size=16
    )
    # Each tenant's document fills half of the pool.
    for tenant in ("x", "y"):
        document = make_tokens(160, ord(tenant))
        for i in range(6):
            prompt = document.copy()
            prompt[-8:] = make_tokens(8, i)
            house.add(make_request(f"{tenant}-{i}", prompt, 2, namespace=("tenant", tenant)))
    house.run()
    stats = house.scheduler.stats()
    assert stats.num_cached_tokens >= 10 * 144


def test_a_namespace_that_comes_back_does_not_have_saved_up_a_share():
    house = make_house(max_num_seqs=1, scheduling_policy="fcfs", fair_share_quantum=50)
    for i in range(10):
        house.add(make_request(f"busy-{i}", 40, 4, namespace=("tenant", "busy")))
    for _ in range(20):
        house.step()
    for i in range(10):
        house.add(make_request(f"late-{i}", 40, 4, namespace=("tenant", "late")))
    house.run()
    order = [name.split("-")[0] for name in house.ends]
    # Without starting level it would run for 300 tokens, seven requests, before anybody else.
    assert "busy" in order[order.index("late") : order.index("late") + 5]
