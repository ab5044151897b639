"""A batch gives up first what none of its programs needs any more."""

import pytest

from tests.frontend.lang.programs import ToyBackend
from tests.runtime.engines import GREEDY, assert_idle, make_engine, random_prompt
from trunkline import function, gen
from trunkline.frontend.lang import State
from trunkline.frontend.lang.prefixes import Prefixes, sequence_key
from trunkline.radix import PrefixCache


@function(temperature=0.0, max_tokens=4, ignore_eos=True)
def ask(s: State, head: str, question: str) -> None:
    s += head + question + gen("answer")


def heads() -> list[str]:
    return [f"{name}:" + " one two three" * 95 + ". " for name in ("alpha", "beta", "gamma")]


def hot_tokens_left(engine) -> int:
    """A user's 400 tokens, then a batch whose prefixes fit beside them two at a time; how many of the user's are left."""
    hot = random_prompt(401, seed=5)
    engine.generate([hot], GREEDY)
    sizes = [len(engine.encode(head)) for head in heads()]
    assert all(250 < size < 350 for size in sizes)
    batch = ask.using(engine).run_batch([(head, f"Q{number}?") for number in range(5) for head in heads()])
    assert all(result.ok for result in batch)
    assert batch.stats.num_saved_tokens == batch.stats.best_saved
    assert_idle(engine)
    return engine.generate([hot], GREEDY)[0].num_cached_tokens


def test_batch_evicts_its_own_finished_subtrees_before_what_another_user_will_want() -> None:
    assert hot_tokens_left(make_engine(tokens=1184, max_num_seqs=2)) == 400


def test_order_and_recency_alone_would_evict_the_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixCache, "retire", lambda *_, **__: 0)
    assert hot_tokens_left(make_engine(tokens=1184, max_num_seqs=2)) < 400


def test_prefix_is_kept_while_a_program_that_may_come_back_to_it_runs() -> None:
    """The last of a subject goes on with a second question after all others have ended."""
    engine = make_engine(tokens=1024, max_num_seqs=2)
    first, second, third = heads()

    @function(temperature=0.0, max_tokens=2, ignore_eos=True)
    def program(s: State, head: str, again: int) -> None:
        s += head + "Q?" + gen("a")
        for _ in range(again):
            s += " Next?" + gen("b")

    batch = program.using(engine).run_batch([(first, 30), (second, 0), (second, 0), (third, 0), (third, 1)])
    kept = batch[0].meta("b")
    assert kept.num_prompt_tokens - kept.num_cached_tokens < 16
    assert batch.stats.num_saved_tokens == batch.stats.best_saved


def test_what_was_cached_before_the_batch_is_never_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    head = heads()[0]
    ask.using(engine).run(head, "Before?")
    before = engine.cache.match(engine.encode(head)).pages
    ask.using(engine).run_batch([(head, "A?"), (heads()[1], "B?"), (heads()[1], "C?")])
    retired = engine.cache.tree.usage.retired
    assert retired.any()
    assert not retired[before].any()


def test_backend_hears_of_each_end_and_whether_others_of_the_batch_run() -> None:
    toy = ToyBackend(broken=["bad"])
    ask.using(toy).run_batch([("a", "?"), ("bad", "?"), ("c", "?")])
    assert sorted(more for _, more in toy.ended_runs) == [False, True, True]
    assert len({run for run, _ in toy.ended_runs}) == 3
    ask.using(toy).run("a", "?")
    assert toy.ended_runs[-1][1] is False


def test_longest_shared_beginning_is_that_of_a_neighbour() -> None:
    import random

    draw = random.Random(1)
    prefixes, kept = Prefixes(), []
    for _ in range(300):
        tokens = [draw.randint(0, 2) * 70_000 for _ in range(draw.randint(1, 8))]
        expected = max(
            (
                next(
                    (i for i, (a, b) in enumerate(zip(one, tokens, strict=False)) if a != b),
                    min(len(one), len(tokens)),
                )
                for one in kept
            ),
            default=0,
        )
        key = sequence_key(np_array(tokens))
        assert prefixes.longest(key) == expected
        if draw.random() < 0.3 and kept:
            gone = kept.pop(draw.randrange(len(kept)))
            prefixes.remove(sequence_key(np_array(gone)))
        prefixes.add(key)
        kept.append(tokens)


def np_array(tokens: list[int]):
    import numpy as np

    return np.array(tokens, dtype=np.int32)
