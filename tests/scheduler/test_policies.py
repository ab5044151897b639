"""Orders of the waiting queue: what goes first, and how long anybody can be passed."""

import numpy as np
import pytest

from tests.oracle.scheduler_depth_first import depth_first, surviving
from tests.scheduler.fakes import make_house, make_request, make_tokens
from tests.scheduler.test_priorities import first_steps
from trunkline.scheduler.config import SchedulerConfig
from trunkline.scheduler.depth_first import JUMP_INTERVAL, DepthFirstOrder
from trunkline.scheduler.policy import make_order
from trunkline.scheduler.state import RequestState


def waiting_state(serial: int, path=(), *, step: int = 0, matched: int = 0, most: int = 4) -> RequestState:
    state = RequestState(make_request(f"r{serial}", 4, most), serial, step, tuple(path))
    state.matched_pages = matched
    return state


def order_of(policy: str, states: list[RequestState], **settings) -> list[int]:
    order = make_order(SchedulerConfig(scheduling_policy=policy, **settings), page_size=16)
    for state in states:
        order.add(state)
    order.check()
    return [state.seq for state in order.candidates(0)]


def test_fcfs_keeps_the_order_of_arrival():
    assert order_of("fcfs", [waiting_state(2), waiting_state(1), waiting_state(3)]) == [1, 2, 3]


def test_lpm_takes_the_longest_cached_prefix_first():
    states = [waiting_state(1), waiting_state(2, (1, 2, 3), matched=3), waiting_state(3, (1, 2), matched=2)]
    assert order_of("lpm", states) == [2, 3, 1]


def test_lpm_lets_a_later_request_pass_only_for_as_many_tokens_as_its_delay_is_worth():
    # 3 pages of 16 tokens are worth 48 / 8 = 6 steps.
    old = waiting_state(1, step=0)
    assert order_of("lpm", [old, waiting_state(2, (1, 2, 3), step=5, matched=3)]) == [2, 1]
    assert order_of("lpm", [old, waiting_state(2, (1, 2, 3), step=7, matched=3)]) == [1, 2]


def test_lof_takes_the_longest_output_first():
    assert order_of("lof", [waiting_state(1, most=4), waiting_state(2, most=9)]) == [2, 1]


def test_random_is_a_shuffle_that_the_seed_decides():
    states = [waiting_state(i) for i in range(50)]
    orders = [order_of("random", states, seed=seed) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(50)) != orders[2]


def test_dfs_weight_serves_the_heaviest_subtree_to_its_end():
    paths = {1: (9,), 2: (1, 2), 3: (1, 3), 4: (1, 2), 5: (7, 8)}
    assert order_of("dfs-weight", [waiting_state(i, path) for i, path in paths.items()]) == [2, 4, 3, 1, 5]


@pytest.mark.parametrize("seed", range(30))
def test_dfs_weight_equals_the_plain_order_through_random_changes(seed):
    rng = np.random.default_rng(seed)
    order = DepthFirstOrder(max_wait_steps=10**9)
    waiting: dict[int, RequestState] = {}
    cached: set[tuple[int, ...]] = set()
    cursor: tuple[int, ...] = ()
    for serial in range(150):
        action = rng.random()
        if action < 0.55 or not waiting:
            path: tuple[int, ...] = ()
            for _ in range(int(rng.integers(0, 5))):
                path = (*path, hash((path, int(rng.integers(0, 2)))))
            matched = sum(path[: i + 1] in cached for i in range(len(path)))
            waiting[serial] = waiting_state(serial, path, matched=matched)
            order.add(waiting[serial])
        elif action < 0.75:
            # The cache learns or loses a page on somebody's way, with all that depends on it.
            state = waiting[int(rng.choice(list(waiting)))]
            keep = int(rng.integers(0, len(state.page_hashes) + 1))
            cached = {p for p in cached if p[:keep] != state.page_hashes[:keep] or len(p) <= keep}
            cached |= {state.page_hashes[: i + 1] for i in range(keep)}
            for other in waiting.values():
                other.matched_pages = sum(
                    other.page_hashes[: i + 1] in cached for i in range(len(other.page_hashes))
                )
                order.rescore(other)
        else:
            state = next(order.candidates(0))
            if action < 0.9:
                order.serving(state, 0)
                cursor = state.page_hashes
            order.remove(state)
            del waiting[state.seq]
        order.check()
        listed = [(s.seq, s.page_hashes, s.matched_pages) for s in waiting.values()]
        cursor = surviving(cursor, listed)
        found = [state.seq for state in order.candidates(0)]
        assert found == depth_first(listed, cursor, {serial: i for i, serial in enumerate(found)})


def test_dfs_weight_begins_the_oldest_ones_subtree_when_it_has_waited_long_enough():
    order = DepthFirstOrder(max_wait_steps=20)
    for serial in (1, 2):
        order.add(waiting_state(serial, (100 + serial,), step=0))
    for serial in range(3, 40):
        order.add(waiting_state(serial, (5, serial), step=0))
    served = []
    for step in range(60):
        state = next(order.candidates(step))
        served.append(state.seq)
        order.serving(state, step)
        order.remove(state)
        if not len(order):
            break
    assert 1 not in served[:20]
    assert served[20] == 1
    assert served[20 + JUMP_INTERVAL] == 2


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_a_cold_request_starts_within_the_bound_while_hot_ones_keep_coming(policy):
    hot = make_tokens(512)
    house = make_house(
        num_pages=256,
        max_num_seqs=1,
        scheduling_policy=policy,
        aging_tokens_per_step=8,
        max_wait_steps=64,
        check=False,
    )
    house.add(make_request("warm", hot, 1))
    house.run()
    # More hot ones arrive than are served, so there is always a hot one to prefer.
    house.add(
        make_request("h0", np.append(hot, np.int32(0)), 1), make_request("h1", np.append(hot, np.int32(1)), 1)
    )
    house.add(make_request("cold", 40, 1))
    began = house.scheduler.stats().num_steps
    for i in range(2, 2000):
        house.add(make_request(f"h{i}", np.append(hot, np.int32(i)), 1))
        house.step()
        if "cold" in house.ends:
            break
    waited = first_steps(house)["cold"] - began
    # lpm: overtaken only by who came within 512 / 8 steps, and those before it; dfs: see its docstring.
    bound = 512 // 8 + 3 if policy == "lpm" else 64 + 3 * JUMP_INTERVAL
    assert 10 < waited <= bound


def test_decoding_requests_get_a_token_in_every_step_while_prompts_keep_arriving():
    house = make_house(num_pages=4096, max_num_batched_tokens=256, scheduling_policy="lpm", check=False)
    house.add(*(make_request(f"d{i}", 32, 400) for i in range(16)))
    house.step()
    house.step()
    for i in range(300):
        if i % 2 == 0:
            house.add(make_request(f"p{i}", 4000, 1))
        house.step()
        scheduled = {s.id for s in house.plans[-1].scheduled}
        assert {f"d{i}" for i in range(16)} <= scheduled
        assert house.plans[-1].num_tokens <= 256


def tree_workload(documents, questions, length, tail):
    prompts = [
        np.concatenate([make_tokens(length, d), make_tokens(tail, 1000 + d * questions + q)])
        for d in range(documents)
        for q in range(questions)
    ]
    return [prompts[i] for i in np.random.default_rng(3).permutation(len(prompts))]


@pytest.mark.parametrize(("policy", "share"), [("lpm", 0.95), ("dfs-weight", 0.95), ("fcfs", 0.0)])
@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_a_shuffled_tree_workload_reaches_nearly_the_best_possible_hit_rate(policy, share, max_num_seqs):
    prompts = tree_workload(8, 8, 256, 16)
    house = make_house(
        num_pages=3 * (256 + 8 * 24) // 16,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=128,
        scheduling_policy=policy,
        check=False,
    )
    house.add(*(make_request(f"q{i}", prompt, 4) for i, prompt in enumerate(prompts)))
    house.run()
    # Depth first, each document is computed once: no order can do better.
    best = 1 - (8 * 256 + 64 * 16) / (64 * 272)
    assert share * best <= house.scheduler.stats().hit_rate <= best + 1e-9


def test_same_calls_give_same_plans():
    def plans(policy):
        house = make_house(num_pages=40, page_size=4, scheduling_policy=policy, max_num_batched_tokens=32)
        house.add(*(make_request(f"r{i}", 10 + i, 9) for i in range(12)))
        house.run()
        return [
            [(s.id, s.start, s.tokens.tolist(), s.pages.tolist()) for s in p.scheduled] for p in house.plans
        ]

    for policy in ("lpm", "dfs-weight", "random"):
        assert plans(policy) == plans(policy)
