"""Batches and streams: order, failures, cancellation, and what the shared prefixes save."""

import asyncio
import gzip
import json
import random
import string
from itertools import groupby
from operator import itemgetter

import pytest

from tests.frontend.lang.programs import ToyBackend, nothing_left_behind
from tests.runtime.engines import DATA, assert_idle, make_engine, tiny_model
from trunkline import function, gen
from trunkline.frontend.lang import ProgramError, State
from trunkline.frontend.lang.backends import Served
from trunkline.frontend.lang.report import best_possible


@function(temperature=0.0, max_tokens=4, ignore_eos=True)
def ask(s: State, question: str) -> str:
    s += question + gen("answer")
    return question


def test_results_come_in_order_and_a_failed_item_is_marked() -> None:
    items = [f"item {number}" for number in range(20)] + ["bad"] + ["last"]
    batch = ask.using(ToyBackend(broken=["bad"])).run_batch(items)
    assert [result.value for result in batch if result.ok] == [*items[:20], "last"]
    assert isinstance(batch[20].error, ProgramError)
    assert batch[20].text() == "bad"
    assert (len(batch), batch.stats.num_items, batch.stats.num_failed) == (22, 22, 1)


def test_exception_of_the_function_itself_is_marked_too() -> None:
    @function
    def program(s: State, number: int) -> float:
        s += gen("x")
        return 1 / number if s["x"] else 0.0

    batch = program.using(ToyBackend()).run_batch([1, 0, 2])
    assert [result.value for result in batch] == [1.0, None, 0.5]
    assert isinstance(batch[1].error, ZeroDivisionError)


def test_empty_batch_and_batch_of_one() -> None:
    assert list(ask.using(ToyBackend()).run_batch([])) == []
    (only,) = ask.using(ToyBackend()).run_batch(["x"])
    assert only["answer"] == "<1>"


def test_items_are_arguments_by_name_by_place_or_the_only_one() -> None:
    @function
    def program(s: State, a: int, b: int = 0) -> tuple[int, int]:
        return a, b

    batch = program.using(ToyBackend()).run_batch([{"a": 1, "b": 2}, (3, 4), 5])
    assert [result.value for result in batch] == [(1, 2), (3, 4), (5, 0)]


def test_ten_thousand_programs_that_wait_run_without_a_thread_each() -> None:
    @function
    def program(s: State, number: int) -> int:
        s += f"@{number}!" + gen("a")
        s += s["a"].upper() + gen("b")
        return number

    with nothing_left_behind():
        batch = program.using(ToyBackend(broken=["@777!"])).run_batch(range(10_000))
    assert [result.value for result in batch if result.ok] == [*range(777), *range(778, 10_000)]


def test_bar_and_report_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine()
    ask.using(engine).run_batch(["one two three " * 10] * 3, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "3/3" in err
    assert "93 prompt tokens, 33 computed, 60 saved (64.5% of at most 64.5%), 12 generated" in " ".join(
        err.split()
    )


def test_cancelled_batch_aborts_every_request_and_leaves_nothing() -> None:
    engine = make_engine(max_num_seqs=4)

    async def main() -> None:
        long = ask.using(engine, max_tokens=400)
        running = asyncio.create_task(long.arun_batch([f"{number}" for number in range(50)]))
        while engine.stats().num_running < 4:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(asyncio.all_tasks()) <= 2  # this one, and the engine's on its way out
        assert (await ask.using(engine).arun("next"))["answer"]

    with nothing_left_behind():
        asyncio.run(main())
    assert_idle(engine)


def test_finished_items_are_told_as_they_end() -> None:
    told: list[int] = []
    asyncio.run(
        ask.using(ToyBackend()).arun_batch(["a", "b"], finished=lambda number, result: told.append(number))
    )
    assert sorted(told) == [0, 1]


def test_stream_brings_the_text_piece_by_piece_and_then_the_state() -> None:
    stream = ask.using(make_engine()).run_stream("Tell me")
    pieces = list(stream)
    assert {piece.name for piece in pieces} == {"answer"}
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces) == stream.result["answer"]


def test_dropped_stream_aborts_its_request() -> None:
    engine = make_engine()
    with nothing_left_behind():
        stream = ask.using(engine, max_tokens=400).run_stream("Tell me")
        next(iter(stream))
        assert engine.stats().num_running == 1
        del stream
    assert engine.stats().num_running == 0
    assert_idle(engine)


def test_closed_async_stream_aborts_its_request() -> None:
    engine = make_engine()

    async def main() -> None:
        stream = ask.using(engine, max_tokens=400).astream("Tell me")
        async for _ in stream:
            break
        await stream.aclose()
        assert engine.stats().num_running == 0

    asyncio.run(main())
    assert_idle(engine)


def test_stream_raises_what_the_run_raises() -> None:
    with pytest.raises(ProgramError, match="gen 'answer'"):
        list(ask.using(ToyBackend(broken=["bad"])).run_stream("bad"))


def test_best_possible_counts_shared_prefixes_and_the_answers_that_are_read_again() -> None:
    import numpy as np

    def served(prompt: list[int], output: list[int]) -> Served:
        ids = np.array(prompt, dtype=np.int32)
        return Served(len(ids), 0, len(output), ids, np.array(output, dtype=np.int32), len(ids) - 1)

    head = list(range(100, 150))
    requests = [served([*head, 1], [7, 8, 9]), served([*head, 2], [7]), served([*head, 1, 7, 8, 9, 5], [1])]
    assert best_possible(requests) == 0 + 50 + 53
    assert best_possible([Served(5, 0, 1)]) is None


def mmlu_prompts() -> list[tuple[str, str]]:
    """(subject, question) prompts: 57 subjects x 20 questions, five worked examples before each; shuffled."""
    with gzip.open(DATA / "mmlu_dev5_test20.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]

    def asked(row: dict) -> str:
        choices = "".join(
            f"\n{letter}. {text}"
            for letter, text in zip(string.ascii_uppercase, row["choices"], strict=False)
        )
        return f"{row['question']}{choices}\nAnswer:"

    prompts = []
    for subject, group in groupby(sorted(rows, key=itemgetter("subject")), key=itemgetter("subject")):
        subject_rows = list(group)
        head = f"Multiple choice questions about {subject.replace('_', ' ')}.\n\n"
        head += "".join(f"{asked(row)} {row['answer']}\n\n" for row in subject_rows if row["split"] == "dev")
        prompts += [(head, asked(row)) for row in subject_rows if row["split"] == "test"]
    random.Random(0).shuffle(prompts)
    return prompts


@pytest.mark.slow
def test_mmlu_in_shuffled_order_computes_each_subject_once_in_a_small_pool() -> None:
    engine = make_engine(tiny_model(max_positions=8192), tokens=24576, max_num_seqs=32)
    prompts = mmlu_prompts()
    heads = {head for head, _ in prompts}
    assert (len(prompts), len(heads)) == (1140, 57)
    assert sum(len(engine.encode(head)) for head in heads) > 24576

    @function(temperature=0.0, max_tokens=1)
    def program(s: State, head: str, question: str) -> None:
        s += head + question + gen("answer")

    batch = program.using(engine).run_batch(prompts)
    stats = batch.stats
    print(stats)
    assert all(result.ok for result in batch)
    once = sum(len(engine.encode(head)) for head in heads)
    tails = stats.num_prompt_tokens - sum(len(engine.encode(head)) for head, _ in prompts)
    computed = engine.stats().num_computed_tokens
    assert computed <= (once + tails) * 1.01
    assert stats.num_computed_tokens == computed
    assert stats.num_saved_tokens >= 0.99 * stats.best_saved
    assert_idle(engine)


def test_progress_goes_on_past_an_item_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    ask.using(ToyBackend(broken=["bad"])).run_batch(["a", "bad", "c"], progress=True)
    err = " ".join(capsys.readouterr().err.split())
    assert "3/3" in err
    assert "3 items (1 failed)" in err
