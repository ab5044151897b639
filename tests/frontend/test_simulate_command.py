"""`trunkline simulate`: what is typed, what is printed, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trunkline.errors import ConfigError, TrunklineError
from trunkline.frontend.simulate.article import (
    ROWS,
    article_remarks,
    article_setup,
    article_table,
    article_workload,
)
from trunkline.frontend.simulate.command import app
from trunkline.frontend.simulate.machine import resolve_model
from trunkline.frontend.simulate.report import LateProgress
from trunkline.frontend.simulate.setup import Setup, default_page_size, parse_assignment
from trunkline.scheduler.config import SchedulerConfig
from trunkline.scheduler.hardware import DEVICES, MODELS
from trunkline.scheduler.roofline import Roofline
from trunkline.scheduler.simulation_report import SimulationReport
from trunkline.scheduler.workload import Workload

CONFIG = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


def invoke(*arguments: str) -> tuple[str, str]:
    """stdout and stderr of the command, which must succeed; its errors are raised."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def refusal(*arguments: str) -> TrunklineError:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, TrunklineError), result.output
    return result.exception


def report_of(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(invoke(*arguments, "--json", "-")[0])
    return document


SMALL = ("generate:shared_tokens=64,prompt_tokens=32,output_tokens=8", "--limit", "30")


def make_setup(**config: Any) -> Setup:
    return Setup(
        Roofline(MODELS["SmolLM2-135M"], DEVICES["cpu-2core"]), SchedulerConfig(**config), kv_tokens=4096
    )


def test_table_names_the_figures_and_the_machine() -> None:
    stdout, _ = invoke(*SMALL)
    assert "generated: Llama-3.1-8B on 1 x H100" in stdout
    for label in (
        "output tokens/s",
        "TTFT p99",
        "ITL p50",
        "hit rate (cached / all prompt tokens)",
        "preemptions",
    ):
        assert label in stdout


def test_json_on_stdout_is_nothing_but_json_and_equal_from_run_to_run() -> None:
    first, stderr = invoke(*SMALL, "--json", "-")
    second, _ = invoke(*SMALL, "--json", "-")
    assert first == second
    assert "TTFT p50" in stderr
    document = json.loads(first)
    (run,) = document["runs"]
    assert run["report"]["num_finished"] == 30
    assert run["settings"]["model"]["name"] == "Llama-3.1-8B"
    assert document["workload"]["name"] == "generated"


def test_json_file_is_written_beside_the_table(tmp_path: Path) -> None:
    stdout, _ = invoke(*SMALL, "--json", str(tmp_path / "report.json"))
    assert "TTFT p50" in stdout
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["report"]["num_refused"] == 0
    assert "absent" in str(refusal(*SMALL, "--json", str(tmp_path / "absent" / "x.json")))


def test_compare_runs_each_variant_on_the_same_requests() -> None:
    document = report_of(*SMALL, "--compare", "fcfs,lpm+no-cache,max_num_seqs=1+page_size=16")
    names = [run["name"] for run in document["runs"]]
    assert names == ["fcfs", "lpm+no-cache", "max_num_seqs=1+page_size=16"]
    fcfs, cold, narrow = document["runs"]
    assert fcfs["report"]["hit_rate"] > cold["report"]["hit_rate"] == 0.0
    assert narrow["report"]["running"]["peak"] == 1
    assert narrow["settings"]["page_size"] == 16
    assert len({run["report"]["output_tokens"] for run in document["runs"]}) == 1


def test_switches_reach_the_scheduler() -> None:
    document = report_of(
        *SMALL,
        *("--policy", "fcfs", "--batching", "static", "--no-chunked-prefill", "--no-prefix-caching"),
        *("--max-num-batched-tokens", "999", "--max-num-seqs", "7", "--set", "max_wait_steps=11"),
        *(
            "--eviction-policy",
            "lfu",
            "--page-size",
            "32",
            "--kv-cache-tokens",
            "6400",
            "--asked-tokens",
            "50",
        ),
    )
    settings = document["runs"][0]["settings"]
    scheduler = settings["scheduler"]
    assert scheduler["scheduling_policy"] == "fcfs"
    assert scheduler["batching"] == "static"
    assert scheduler["enable_chunked_prefill"] is False
    assert scheduler["enable_prefix_caching"] is False
    assert scheduler["max_num_batched_tokens"] == 999
    assert scheduler["max_num_seqs"] == 7
    assert scheduler["max_wait_steps"] == 11
    assert settings["eviction_policy"] == "lfu"
    assert (settings["page_size"], settings["num_pages"], settings["asked_tokens"]) == (32, 200, 50)


def test_scheduler_settings_come_from_yaml_and_what_is_typed_goes_before(tmp_path: Path) -> None:
    config = tmp_path / "scheduler.yaml"
    config.write_text("scheduler:\n  max_num_seqs: 5\n  scheduling_policy: fcfs\n")
    scheduler = report_of(*SMALL, "--config", str(config), "--policy", "lpm")["runs"][0]["settings"][
        "scheduler"
    ]
    assert (scheduler["max_num_seqs"], scheduler["scheduling_policy"]) == (5, "lpm")


def test_trace_file_is_served(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n10,50,2\n")
    report = report_of(str(path), "--speed", "2")["runs"][0]["report"]
    assert report["prompt_tokens"] == 150
    assert report["output_tokens"] == 7
    assert 5.0 < report["seconds"] < 6.0


def test_fewer_bits_leave_more_cache_and_run_faster() -> None:
    plain, small = (report_of(*SMALL, "--weight-bits", bits)["runs"][0] for bits in ("16", "4"))
    assert small["settings"]["num_pages"] > plain["settings"]["num_pages"]
    assert small["report"]["itl"]["p50"] < plain["report"]["itl"]["p50"]


def test_calibration_replaces_the_presets_and_states_its_error(tmp_path: Path) -> None:
    steps = [
        {"tokens": 1, "attended": context, "context": context, "seconds": 0.01 + 1e-6 * context}
        for context in (10, 1000, 4000, 16000)
    ]
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"steps": steps}))
    stdout, _ = invoke(*SMALL, "--calibration", str(path))
    assert "calibrated with 4 steps: bandwidth_efficiency" in stdout
    assert "on average" in stdout
    path.write_text("[1]")
    assert "must be a list of objects" in str(refusal(*SMALL, "--calibration", str(path)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.jsonl",), "absent.jsonl: cannot be read"),
        (("generate:colour=3",), "colour"),
        (("generate", "--limit", "0"), "--limit must be at least 1, got 0"),
        (("generate", "--speed", "0"), "speed of a trace must be positive"),
        (("generate", "--device", "TPU"), "device 'TPU' is unknown"),
        (("generate", "--model", "gpt-9"), "model 'gpt-9' is unknown"),
        (("generate", "--policy", "best"), "scheduling_policy must be one of"),
        (("generate", "--compare", "fcfs,best"), "variant 'best' is unknown"),
        (("generate", "--set", "max_num_seqs"), "expected name=value, got 'max_num_seqs'"),
        (("generate", "--set", "max_seqs=3"), "did you mean max_num_seqs?"),
        (("generate", "--page-size", "0"), "page_size must be"),
        (("generate", "--compare", "page_size=x"), "page_size must be an integer, not 'x'"),
        (("generate", "--kv-cache-tokens", "3"), "smaller than a page"),
        (("generate", "--model", "Llama-3.1-70B"), "leaves no page for keys and values"),
        (("article", "--device", "H100"), "takes no option but --json, got --device"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    assert message in str(refusal(*arguments))


@pytest.mark.parametrize(("block_size", "page_size"), [(None, 16), (1, 16), (64, 64), (512, 256), (48, 16)])
def test_page_size_follows_what_the_workload_knows(block_size: int | None, page_size: int) -> None:
    assert default_page_size(Workload("w", (), block_size)) == page_size


def test_variants_leave_the_rest_as_it_was() -> None:
    setup = make_setup(max_num_seqs=3).variant("static")
    assert setup.scheduler == SchedulerConfig(max_num_seqs=3, batching="static", enable_chunked_prefill=False)
    assert setup.variant("chunked").scheduler == SchedulerConfig(max_num_seqs=3)
    assert setup.variant("eviction_policy=fifo").eviction_policy == "fifo"


def test_values_are_what_they_look_like() -> None:
    assert parse_assignment("target-itl-ms=null") == {"target_itl_ms": None}
    assert parse_assignment("enable_chunked_prefill=false") == {"enable_chunked_prefill": False}
    with pytest.raises(ConfigError, match="is not YAML"):
        parse_assignment("seed=[1")


def test_model_directory_is_read_from_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "SmolLM2-135M"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert resolve_model(str(folder)) == MODELS["SmolLM2-135M"]
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"no readable config\.json"):
        resolve_model(str(folder))


def test_gguf_file_is_read_from_its_metadata(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np

    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(100)
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = resolve_model(str(path))
    assert (shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (
        2,
        64,
        4,
        2,
        16,
    )
    assert (shape.intermediate_size, shape.vocab_size, shape.tied_embeddings) == (128, 100, True)
    assert shape.weight_bytes == 2.0
    (tmp_path / "not.gguf").write_bytes(b"hello, this is no model at all")
    with pytest.raises(ConfigError, match="not a readable GGUF file"):
        resolve_model(str(tmp_path / "not.gguf"))


def test_progress_bar_shows_up_after_two_seconds() -> None:
    from rich.console import Console

    now = [0.0]
    console = Console(force_terminal=True, width=80, file=None, record=True, quiet=True)
    with LateProgress(console, clock=lambda: now[0]) as progress:
        hear = progress.run("lpm", 10)
        hear(1, 5.0)
        assert not progress.is_shown
        now[0] = 2.5
        hear(2, 9.0)
        assert progress.is_shown


def test_article_is_simulated_and_its_contradictions_are_stated() -> None:
    reports: dict[str, dict[int, SimulationReport]] = {}
    for row in ROWS:
        workload = article_workload(row.concurrency).head(12)
        reports[row.name] = {bits: article_setup(row, bits).simulate(workload) for bits in (16, 8, 4)}
    table = article_table(reports)
    assert [str(column.header) for column in table.columns][1:] == ["article", "16 bit", "8 bit", "4 bit"]
    assert "1,842" in table.columns[1].cells
    remarks = "\n".join(article_remarks(reports))
    assert "34.1 ms at 16 bit" in remarks
    assert (
        "static: 16 requests with a token every 18 ms are 889 tokens/s, less than the article's 1,842."
        in remarks
    )
    assert "16 bit 141 GB, room for" in remarks
