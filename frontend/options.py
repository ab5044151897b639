"""From what was typed to the configs of the engine and of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import yaml

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from trunkline.runtime.engine import Engine, EngineConfig
    from trunkline.runtime.sampling import SamplingParams

Config = TypeVar("Config")

__all__ = ["EngineOptions", "Quantization", "SamplingOptions", "read_engine_config"]

Quantization = Annotated[
    str | None,
    typer.Option(help="int8: half the weights' memory; gguf: a .gguf file's own blocks; both on CPUs."),
]


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The sampling options of a command."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: list[str] | None

    def build(self) -> SamplingParams:
        from trunkline.runtime.sampling import SamplingParams

        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=tuple(self.stop or ()),
        )


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine options of a command; what was typed goes before what the file says."""

    model: str | None
    dtype: str
    quantization: str | None
    config: Path | None
    max_model_len: int | None
    kv_cache_tokens: int | None

    def start(self) -> Engine:
        """Loads the model; the settings are checked first."""
        from trunkline.runtime.engine import Engine

        base = read_engine_config(self.config)
        typed = {
            name: value
            for name in ("model", "quantization", "max_model_len", "kv_cache_tokens")
            if (value := getattr(self, name)) is not None
        }
        if self.dtype != "auto":
            typed["dtype"] = self.dtype
        return Engine(replace(base, **typed))


def read_engine_config(
    path: Path | None, defaults: Mapping[str, Mapping[str, Any]] | None = None
) -> EngineConfig:
    """An `EngineConfig` from YAML: its own fields on the top level, `radix:` and `scheduler:` below.

    `defaults` are settings of `radix` and `scheduler` for which the file, if there is one, may have other values.
    Raises ConfigError on a file that can't be read, a field nobody knows and a value out of range.
    """
    from trunkline.radix import RadixConfig
    from trunkline.runtime.engine import EngineConfig
    from trunkline.scheduler import SchedulerConfig

    top = _checked({} if path is None else _read(path), EngineConfig, str(path))
    for name, room in (("radix", RadixConfig), ("scheduler", SchedulerConfig)):
        where = f"{path}, {name}"
        assumed = (defaults or {}).get(name, {})
        top[name] = _construct(room, {**assumed, **_checked(top.get(name, {}), room, where)}, where)
    return _construct(EngineConfig, top, str(path))


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"config {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not YAML: {' '.join(str(error).split())}") from None


def _checked(settings: Any, config: type, where: str) -> dict[str, Any]:
    """The mapping, once every key is known to be a field of the config."""
    if not isinstance(settings, dict):
        raise ConfigError(f"config {where}: expected a mapping, got {settings!r}")
    known = [field.name for field in fields(config)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"config {where}: no setting {name!r}; known are {', '.join(known)}")
    return dict(settings)


def _construct(config: type[Config], settings: dict[str, Any], where: str) -> Config:
    try:
        return config(**settings)
    except TypeError as error:
        raise ConfigError(f"config {where}: {error}") from None
