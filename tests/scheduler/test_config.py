"""Settings: names that operators know, from YAML too, contradictions refused by name."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from trunkline.errors import ConfigError
from trunkline.scheduler.config import SchedulerConfig


def test_settings_come_from_yaml(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("max_num_batched_tokens: 512\nscheduling_policy: dfs-weight\ntarget_itl_ms: 40\n")
    config = SchedulerConfig.from_yaml(path)
    assert (config.max_num_batched_tokens, config.scheduling_policy, config.target_itl_ms) == (
        512,
        "dfs-weight",
        40,
    )


def test_settings_may_stand_under_their_own_key(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("scheduler:\n  max_num_seqs: 8\nport: 80\n")
    assert SchedulerConfig.from_yaml(path) == SchedulerConfig(max_num_seqs=8)


def test_an_empty_file_means_the_defaults(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("")
    assert SchedulerConfig.from_yaml(path) == SchedulerConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_batch_tokens: 5", "did you mean max_num_batched_tokens"),
        ("- 1", "must map names to values"),
        ("a: [", "cannot read scheduler settings"),
        ("max_num_seqs: yes", "max_num_seqs must be an integer of at least 1, not True"),
        ("max_num_seqs: 1.5", "not 1.5"),
        ("enable_chunked_prefill: 1", "enable_chunked_prefill must be true or false, not 1"),
        ("scheduling_policy: sjf", "scheduling_policy must be one of fcfs, lpm"),
        ("preemption_mode: swap", "num_host_pages is 0"),
        ("target_itl_ms: 0", "target_itl_ms must be a positive number"),
        ("long_prefill_token_threshold: 4096", "above max_num_batched_tokens"),
        ("{target_itl_ms: 20, enable_chunked_prefill: false}", "enable_chunked_prefill"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig.from_yaml(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        SchedulerConfig.from_yaml(tmp_path / "nowhere.yaml")


def test_no_more_requests_run_than_a_step_has_tokens():
    assert SchedulerConfig(max_num_batched_tokens=7, max_num_seqs=32).max_running == 7


def test_every_setting_is_documented_with_its_default():
    text = (Path(__file__).parents[2] / "docs" / "scheduler.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", text, flags=re.MULTILINE))
    defaults = {field.name: str(field.default).lower() for field in fields(SchedulerConfig)}
    del defaults["priority_preemption"]  # its default follows another setting
    assert {name: documented[name] for name in defaults} == defaults
    assert "priority_preemption" in documented
