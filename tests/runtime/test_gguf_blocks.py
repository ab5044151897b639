"""Models that compute with a GGUF file's own blocks."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.attention.native_levels import LEVELS, needs_native
from tests.runtime.engines import DATA, make_engine, token_lists
from tests.runtime.loading_factories import write_folder
from tests.runtime.paged_driver import PagedDriver
from trunkline.attention import native
from trunkline.errors import ConfigError
from trunkline.runtime.engine import Engine
from trunkline.runtime.loading import LoadedModel, gguf_weights, load_model
from trunkline.runtime.loading.gguf_config import hf_config
from trunkline.runtime.loading.gguf_file import GGUFFile
from trunkline.runtime.loading.source import resolve
from trunkline.runtime.models import BlockWeight
from trunkline.runtime.models.linear import linear_form
from trunkline.runtime.sampling import SamplingParams

pytestmark = needs_native

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@cache
def in_blocks() -> LoadedModel:
    return load_model(None, dtype="float32", device="cpu", quantization="gguf")


def prompts(count: int) -> list[list[int]]:
    lines = (DATA / "mt_bench_20.jsonl").read_text(encoding="utf-8").splitlines()
    engine = make_engine(in_blocks())
    return [
        engine.chat_prompt([{"role": "user", "content": json.loads(line)["turns"][0]}])
        for line in lines[:count]
    ]


def test_blocks_stand_for_the_numbers_that_are_read_without_them() -> None:
    file = GGUFFile(resolve(None).path)
    config = hf_config(file)
    kinds = set()
    for (name, weight), (other, expected) in zip(
        gguf_weights.block_weights(file, config), gguf_weights.weights(file, config), strict=True
    ):
        assert name == other
        if isinstance(weight, BlockWeight) and ".1." in name:
            kinds.add(weight.kind)
            assert weight.shape == expected.shape
            assert torch.equal(weight.dense(), expected)
    assert kinds == {"Q4_1"}


def test_the_embedded_model_takes_the_bytes_of_its_file() -> None:
    file = GGUFFile(resolve(None).path)
    in_file = sum(tensor.num_bytes for tensor in file.tensors.values() if tensor.kind.name != "F32")
    held: set[tuple[int, int]] = set()
    for value in _tensors(in_blocks().model, set()):
        held.add((value.untyped_storage().data_ptr(), value.untyped_storage().nbytes()))
    rotary_and_norms = 2 * 8192 * 64 * 4 + 61 * 576 * 4
    total = sum(size for _, size in held)
    print(f"{total} bytes held, {in_file} in the file")
    assert in_file <= total <= in_file + rotary_and_norms


def _tensors(value: object, seen: set[int]) -> list[torch.Tensor]:
    """Every tensor that can be reached from an object of ours."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        inside: list[object] = list(value)
    elif isinstance(value, dict):
        inside = list(value.values())
    elif type(value).__module__.startswith("trunkline"):
        inside = list(getattr(value, "__dict__", {}).values())
    else:
        return []
    return [tensor for part in inside for tensor in _tensors(part, seen)]


def test_greedy_tokens_are_mostly_those_of_the_inflated_weights() -> None:
    """Each place after the same tokens: the inflated model's own continuation."""
    inflated = make_engine(load_model(None, dtype="float32", device="cpu"), tokens=8192)
    questions = prompts(8)
    answers = token_lists(inflated.generate(questions, PARAMS))
    share = teacher_forced_agreement(make_engine(in_blocks(), tokens=8192), questions, answers)
    assert share >= 0.9


def test_answers_are_the_same_cold_warm_chunked_and_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all batch sizes are computed alike: below the level that has tiles."""
    monkeypatch.setenv("TRUNKLINE_CPU_LEVEL", [level for level in LEVELS if level != "amx"][-1])
    model = load_model(None, dtype="float32", device="cpu", quantization="gguf")
    questions = prompts(5)
    engine = make_engine(model, tokens=8192)
    cold = [engine.generate([question], PARAMS)[0].token_ids for question in questions]
    warm = [engine.generate([question], PARAMS)[0].token_ids for question in questions]
    assert warm == cold
    assert token_lists(make_engine(model, tokens=8192).generate(questions, PARAMS)) == cold
    chunked = make_engine(model, tokens=8192, max_num_batched_tokens=16)
    assert token_lists(chunked.generate(questions, PARAMS)) == cold


def test_few_and_many_rows_mostly_agree_where_they_are_computed_differently() -> None:
    questions = prompts(5)
    answers = token_lists(make_engine(in_blocks(), tokens=8192).generate(questions, PARAMS))
    # Every place is computed by itself now: one row, after a cached prefix of many.
    engine = make_engine(in_blocks(), tokens=8192, max_num_batched_tokens=8)
    assert teacher_forced_agreement(engine, questions, answers) >= 0.9


def teacher_forced_agreement(
    engine: Engine, questions: Sequence[list[int]], answers: Sequence[list[int]]
) -> float:
    """Of every third place of the answers: where the engine's next token is the answer's."""
    one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    agreeing = places = 0
    for question, answer in zip(questions, answers, strict=True):
        for cut in range(0, len(answer), 3):
            [found] = engine.generate([question + answer[:cut]], one)
            agreeing += found.token_ids[0] == answer[cut]
            places += 1
    print(f"{agreeing} of {places} tokens agree")
    return agreeing / places


def test_the_native_pass_gives_what_the_layers_give_one_by_one() -> None:
    [question] = prompts(1)
    native_pass, by_layers = (
        torch.cat(PagedDriver(in_blocks().model, backend).greedy([question[:40]], 1, budget=5)[0].logits)
        for backend in ("cpu", "torch")
    )
    difference = (native_pass - by_layers).abs().max()
    print(f"largest difference {difference:.2e} of logits up to {by_layers.abs().max():.1f}")
    assert difference < 0.05  # where a number falls between two whole ones, the last bit decides


def test_a_model_that_is_no_gguf_file_is_refused_in_one_line(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"'gguf' computes with a \.gguf file's own blocks; .* is none$"):
        load_model(tmp_path, quantization="gguf")


def test_what_cannot_run_here_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    with pytest.raises(ConfigError, match=r"bfloat16 or float32, not in torch\.float16$"):
        linear_form("gguf", torch.float16, cpu)
    monkeypatch.setattr(native, "unavailable", lambda: "no compiler")
    with pytest.raises(ConfigError, match=r"'gguf' cannot run: no compiler$"):
        linear_form("gguf", torch.bfloat16, cpu)
