"""The examples run on the embedded model, and say what they promise."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.engines import assert_idle, make_engine, smollm2
from trunkline import backend
from trunkline.frontend.lang import Batch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
pytestmark = pytest.mark.slow


def run(name: str, **options: Any) -> Batch[Any]:
    engine = make_engine(smollm2(), tokens=16384)
    with backend(engine):
        batch = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**options)
    assert [result.error for result in batch] == [None] * len(batch)
    assert batch.stats.num_saved_tokens >= 0.98 * batch.stats.best_saved
    assert_idle(engine)
    return batch


def test_every_example_is_tested_here() -> None:
    named = {path.stem for path in EXAMPLES.glob("*.py")}
    assert named == set(re.findall(r'run\("(\w+)"', Path(__file__).read_text(encoding="utf-8")))


def test_gsm8k_few_shot() -> None:
    batch = run("gsm8k_few_shot", limit=2, max_tokens=12)
    assert batch.stats.hit_rate > 0.4


def test_mmlu_few_shot() -> None:
    assert all(result.value in "ABCD" for result in run("mmlu_few_shot", limit=3))


def test_endings_select() -> None:
    assert all(len(result.value) == 3 for result in run("endings_select", limit=2))


def test_game24_tree() -> None:
    (result,) = run("game24_tree", limit=1)
    steps = result.value[1].splitlines()[1:]
    assert len(steps) == 3
    assert all(re.fullmatch(r"Step: \d+ [-+*/] \d+ = \d+ \(left: [\d ]+\)", step) for step in steps)


def test_react_hotpotqa() -> None:
    (result,) = run("react_hotpotqa", limit=1)
    assert re.search(r"Action: (Search|Finish)\[.+\]\n", result.text())


def test_judge_mt_bench() -> None:
    (result,) = run("judge_mt_bench", limit=1)
    assert all(1 <= grade <= 5 for grade in result.value.values())
    assert [message["role"] for message in result.messages()][1:] == ["user", "assistant"] * 2


def test_json_extraction() -> None:
    assert all(result.value.numbers for result in run("json_extraction", limit=2))
