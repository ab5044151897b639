"""The command line: real answers, and one line with exit code 2 for what a person got wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline import __version__
from trunkline.frontend import cli


@pytest.fixture
def trunkline(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Runs the command in this process; returns exit code, stdout, stderr."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trunkline", *arguments])
        monkeypatch.setattr(sys, "stdin", _lines(stdin))
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def _lines(text: str):
    import io

    return io.StringIO(text)


SMALL = ("--kv-cache-tokens", "1024", "--dtype", "float32")


def test_generate_answers_prompts_in_order_and_reports_the_shared_prefix(trunkline) -> None:
    question = "The three primary colours are named here in one short list, and they are called"
    code, out, err = trunkline(
        "generate", "--jsonl", "--max-tokens", "3", *SMALL, question, f"{question} red", question
    )
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["prompt"] for record in records] == [question, f"{question} red", question]
    assert records[0]["text"] == records[2]["text"]
    assert records[0]["num_cached_tokens"] == 0
    assert records[1]["num_cached_tokens"] == records[0]["num_prompt_tokens"]
    assert records[2]["num_cached_tokens"] == records[0]["num_prompt_tokens"] - 1
    assert [record["num_output_tokens"] for record in records] == [3, 3, 3]


def test_generate_reads_prompts_from_a_file_and_from_stdin(trunkline, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One\n\nTwo\n")
    code, out, _ = trunkline("generate", "--file", str(prompts), "--max-tokens", "1", *SMALL)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("---")] == ["--- One", "--- Two"]
    code, out, _ = trunkline("generate", "--max-tokens", "1", *SMALL, "-", stdin="Three\nFour\n")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("---")] == ["--- Three", "--- Four"]


def test_chat_streams_resets_and_tells_what_came_from_the_cache(trunkline) -> None:
    code, out, err = trunkline(
        "chat", "--max-tokens", "8", *SMALL, stdin="Name a river.\nAnd a lake?\n/reset\nName a river.\n/fly\n"
    )
    assert (code, err) == (0, "")
    told = [line for line in out.splitlines() if "prompt tokens from the cache" in line]
    cached, totals = zip(*[(int(line.split()[0]), int(line.split()[2])) for line in told], strict=True)
    assert cached[0] == 0
    assert (
        cached[1] == totals[0] + 7
    )  # all of the first prompt, and the answer but its last, uncomputed token
    assert cached[2] == totals[2] - 1
    assert totals[2] == totals[0]
    assert "/fly is no command here" in out


def test_quantization_can_be_asked_for(trunkline) -> None:
    code, out, err = trunkline(
        *("generate", "--quantization", "int8", "--max-tokens", "2", *SMALL), "The capital of France is"
    )
    assert (code, err) == (0, "")
    assert out.startswith(" Paris")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("generate", "--model", "nowhere/at all", "Hi"),
            "'nowhere/at all': no such model folder or .gguf file",
        ),
        (("generate", "--temperature", "3", "Hi"), "temperature must be a number in [0, 2], not 3"),
        (("generate", "--kv-cache-tokens", "5", "Hi"), "kv_cache_tokens 5 holds no page of 16 tokens"),
        (("generate", "--dtype", "int3", "Hi"), "dtype 'int3'"),
        (("generate", "--quantization", "int3", "Hi"), "quantization 'int3' is none of int8"),
        (("chat", "--quantization", "int3"), "quantization 'int3' is none of int8"),
        (("serve", "--port", "0", "--quantization", "int3"), "quantization 'int3' is none of int8"),
        (("serve", "--port", "0", "--kv-cache-dtype", "int3"), "kv_cache_dtype 'int3' is none of auto, int8"),
        (("generate", "--config", "nowhere.yaml", "Hi"), "config nowhere.yaml: No such file or directory"),
        (("generate", "--file", "nowhere.txt"), "--file nowhere.txt: No such file or directory"),
        (("generate", *SMALL, ""), "the prompt is empty"),
        (("generate", *SMALL, "--max-tokens", "4000", "Hi"), "max_tokens 4000"),
        (("chat", "--kv-cache-tokens", "64", "--max-model-len", "100"), "max_model_len 100"),
    ],
)
def test_what_a_person_got_wrong_is_one_line_and_exit_code_2(
    trunkline, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = trunkline(*arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1


CONFIG = """
kv_cache_tokens: 1024
dtype: float32
radix: {page_size: 8, eviction_policy: slru}
scheduler: {max_num_batched_tokens: 64, scheduling_policy: dfs-weight, enable_chunked_prefill: true}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed: high", "no setting 'speed'; known are"),
        ("scheduler: {max_tokens: 3}", "no setting 'max_tokens'"),
        (
            "scheduler: {max_num_batched_tokens: 0}",
            "max_num_batched_tokens must be an integer of at least 1, not 0",
        ),
        ("radix: 16", "expected a mapping, got 16"),
        ("radix: [", "is not YAML"),
        (
            "scheduler: {max_num_batched_tokens: 64, long_prefill_token_threshold: 100}",
            "long_prefill_token_threshold (100) is above max_num_batched_tokens (64)",
        ),
    ],
)
def test_a_bad_config_file_is_one_line(trunkline, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    code, _, err = trunkline("generate", "--config", str(file), "Hi")
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_settings_come_from_the_config_file(trunkline, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    code, out, err = trunkline("generate", "--config", str(file), "--max-tokens", "1", "--jsonl", "Hi")
    assert (code, err) == (0, "")
    assert json.loads(out)["num_output_tokens"] == 1


def test_the_installed_command_tells_its_version_and_its_commands() -> None:
    command = Path(sys.executable).parent / "trunkline"
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"trunkline {__version__}\n"
    usage = subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(name in usage for name in ("generate", "chat", "serve", "simulate"))
