"""Match lengths of those who wait follow the cache, and cost what changed, not who waits."""

import numpy as np
import pytest

from tests.scheduler.fakes import make_house, make_request, make_tokens
from trunkline.scheduler.errors import InvariantError
from trunkline.scheduler.match_index import MatchIndex
from trunkline.scheduler.state import RequestState


def state(serial, path):
    return RequestState(make_request(f"r{serial}", 4), serial, 0, tuple(path))


def array(*hashes):
    return np.array(hashes, dtype=np.uint64)


def test_a_stored_page_moves_only_those_whose_next_page_it_is():
    index = MatchIndex()
    a, b, c = state(1, (1, 2, 3)), state(2, (1, 2, 4)), state(3, (9,))
    for waiting in (a, b, c):
        index.track(waiting, 0)
    index.stored(array(1, 2, 4))
    assert {s.seq for s in index.settle(10)} == {1, 2}
    assert (a.matched_pages, b.matched_pages, c.matched_pages) == (2, 3, 0)
    assert index.num_updates == 2


def test_an_evicted_page_shrinks_those_whose_match_ended_there():
    index = MatchIndex()
    a, b = state(1, (1, 2, 3)), state(2, (1, 2, 4))
    index.stored(array(1, 2, 3))
    index.track(a, 3)
    index.track(b, 2)
    index.evicted(array(3))
    assert list(index.settle(10)) == [a]
    index.evicted(array(2, 1))
    assert {s.seq for s in index.settle(10)} == {1, 2}
    assert (a.matched_pages, b.matched_pages) == (0, 0)


def test_updates_are_bounded_and_the_rest_follows_in_the_next_calls():
    index = MatchIndex()
    states = [state(i, (1, 100 + i)) for i in range(10)]
    for waiting in states:
        index.track(waiting, 0)
    index.stored(array(1))
    assert [len(list(index.settle(4))) for _ in range(4)] == [4, 4, 2, 0]
    assert all(waiting.matched_pages == 1 for waiting in states)


def test_check_finds_a_length_that_is_wrong():
    index = MatchIndex()
    waiting = state(1, (1, 2))
    index.track(waiting, 0)
    waiting.matched_pages = 1
    with pytest.raises(InvariantError, match="'r1'"):
        index.check()


@pytest.mark.parametrize("seed", range(10))
def test_lengths_equal_a_recount_through_random_events(seed):
    rng = np.random.default_rng(seed)
    index, cached, waiting = MatchIndex(), set(), {}

    def path(length):
        found = ()
        for _ in range(length):
            found = (*found, (found[-1] if found else 0) * 3 + 1 + int(rng.integers(0, 2)))
        return found

    for serial in range(300):
        match int(rng.integers(0, 5)):
            case 0 | 1:
                new = state(serial, path(int(rng.integers(0, 6))))
                count = sum(h in cached for h in new.page_hashes)
                index.track(new, count)
                waiting[serial] = new
            case 2:
                hashes = path(int(rng.integers(1, 6)))
                index.stored(array(*(h for h in hashes if h not in cached)))
                cached |= set(hashes)
            case 3:
                leaves = [h for h in cached if 3 * h + 1 not in cached and 3 * h + 2 not in cached]
                if leaves:
                    index.evicted(array(leaves[0]))
                    cached.discard(leaves[0])
            case 4 if waiting:
                gone = waiting.pop(int(rng.choice(list(waiting))))
                index.untrack(gone)
        list(index.settle(int(rng.integers(0, 4))))
        index.check()
    list(index.settle(10_000))
    for left in waiting.values():
        assert left.matched_pages == sum(h in cached for h in left.page_hashes)


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_the_work_of_a_step_does_not_grow_with_the_queue(policy):
    def work_per_step(num_waiting):
        house = make_house(num_pages=4096, max_num_seqs=16, scheduling_policy=policy, check=False)
        for i in range(num_waiting):
            prompt = np.concatenate([make_tokens(64, i // 10), make_tokens(64, 1000 + i)])
            house.add(make_request(f"r{i}", prompt, 4 + i % 5))
        counts = []
        for _ in range(60):
            before = house.scheduler.stats()
            house.step()
            after = house.scheduler.stats()
            counts.append(
                after.candidates_examined
                + after.match_updates
                - before.candidates_examined
                - before.match_updates
            )
        house.scheduler.check()
        return max(counts), sum(counts)

    # At most: free slots, 64 parked, 16 passed over, 64 lengths brought up to date.
    small, large = work_per_step(200), work_per_step(2000)
    assert max(small[0], large[0]) <= 16 + 64 + 16 + 64
    assert large[1] <= 2 * small[1]
