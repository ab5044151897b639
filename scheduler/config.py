"""The scheduler's settings, with the names that operators of other runtimes know."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from trunkline.errors import ConfigError

PolicyName = Literal["fcfs", "lpm", "dfs-weight", "lof", "priority", "random"]
PreemptionMode = Literal["recompute", "swap", "auto", "heuristic"]
Batching = Literal["continuous", "static"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of one `Scheduler`; contradictions raise `ConfigError` when it is built.

    Budgets
        `max_num_batched_tokens`: tokens computed in one step. `max_num_seqs`: requests that run at a time; at
        most one per token of the budget runs, so that each can decode in every step.
        `long_prefill_token_threshold`: the most prompt tokens one request computes in a step.
        `max_num_partial_prefills`: requests whose prompt may be cut at a time. `target_itl_ms`: with it, the
        prompt tokens of a step are also bounded by the step's predicted time.
    Order
        `scheduling_policy`; `aging_tokens_per_step`: by how many tokens of score a waiting request overtakes
        later ones per step of age (lpm, lof); `max_wait_steps`: age at which dfs-weight serves the oldest
        first; `fair_share_quantum`: computed tokens by which one namespace may be ahead of another that waits
        (None: no fair share); `priority_preemption`: a waiting request of a higher class takes the place of a
        running one of a lower (None: only with the policy "priority"); `seed`: of the policy "random".
    Memory
        `preemption_mode`, `num_host_pages` (swap space); `max_skipped_candidates`: how many waiting requests
        that do not fit are passed over in one step; `max_overtakes`: how often one request may be passed over
        for memory before the ones behind it wait too; `in_flight_patience`: steps without progress of the
        request that computes a shared prefix after which those that wait for it compute it themselves.
    Baselines
        `batching`, `enable_chunked_prefill`, `enable_prefix_caching`.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    long_prefill_token_threshold: int | None = None
    max_num_partial_prefills: int = 1
    target_itl_ms: float | None = None
    scheduling_policy: PolicyName = "lpm"
    aging_tokens_per_step: int = 8
    max_wait_steps: int = 256
    fair_share_quantum: int | None = None
    priority_preemption: bool | None = None
    seed: int = 0
    preemption_mode: PreemptionMode = "recompute"
    num_host_pages: int = 0
    max_skipped_candidates: int = 16
    max_overtakes: int = 64
    in_flight_patience: int = 8
    batching: Batching = "continuous"
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _check_int(name, getattr(self, name), least)
        for name in ("long_prefill_token_threshold", "fair_share_quantum"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 1)
        for name in ("enable_chunked_prefill", "enable_prefix_caching"):
            _check_bool(name, getattr(self, name))
        if self.priority_preemption is not None:
            _check_bool("priority_preemption", self.priority_preemption)
        _check_choice("scheduling_policy", self.scheduling_policy, get_args(PolicyName))
        _check_choice("preemption_mode", self.preemption_mode, get_args(PreemptionMode))
        _check_choice("batching", self.batching, get_args(Batching))
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        target = self.target_itl_ms
        if target is not None and (
            isinstance(target, bool) or not isinstance(target, (int, float)) or target <= 0
        ):
            raise ConfigError(f"target_itl_ms must be a positive number of milliseconds, not {target!r}")
        threshold = self.long_prefill_token_threshold
        if threshold is not None and threshold > self.max_num_batched_tokens:
            raise ConfigError(
                f"long_prefill_token_threshold ({threshold}) is above "
                f"max_num_batched_tokens ({self.max_num_batched_tokens})"
            )
        for name, value in (("long_prefill_token_threshold", threshold), ("target_itl_ms", target)):
            if value is not None and not self.enable_chunked_prefill:
                raise ConfigError(
                    f"{name} ({value}) cuts prompts, which enable_chunked_prefill (False) forbids"
                )
        if self.preemption_mode != "recompute" and self.num_host_pages == 0:
            raise ConfigError(
                f"preemption_mode {self.preemption_mode!r} needs host memory: num_host_pages is 0, "
                'raise it or choose "recompute"'
            )

    @property
    def max_running(self) -> int:
        """Slots that can be filled: one token per running request must fit in a step's budget."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def preempts_for_priority(self) -> bool:
        """Whether a waiting request may take the place of a running one of a lower class."""
        if self.priority_preemption is None:
            return self.scheduling_policy == "priority"
        return self.priority_preemption

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "SchedulerConfig":
        """Build from names and values, as read from YAML; an unknown name raises `ConfigError`."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                near = get_close_matches(str(name), known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"unknown scheduler setting {name!r}{hint}")
        return cls(**values)

    @classmethod
    def from_yaml(cls, path: str | Path) -> "SchedulerConfig":
        """Read a YAML file that maps names to values, at its top or under the key `scheduler`.

        Raises `ConfigError` for a file that cannot be read, is not YAML, or holds something else.
        """
        try:
            document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read scheduler settings from {path}: {error}") from error
        values = {} if document is None else document
        if isinstance(values, dict) and "scheduler" in values:
            values = values["scheduler"]
        if not isinstance(values, dict):
            raise ConfigError(f"scheduler settings in {path} must map names to values, not {values!r}")
        return cls.from_mapping(values)


_LEAST = {
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "max_num_partial_prefills": 1,
    "aging_tokens_per_step": 1,
    "max_wait_steps": 1,
    "seed": 0,
    "num_host_pages": 0,
    "max_skipped_candidates": 0,
    "max_overtakes": 0,
    "in_flight_patience": 1,
}


def _check_int(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {value!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
