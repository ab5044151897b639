"""Hugging Face model folders: `config.json` and safetensors, in one file or in shards with an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trunkline.runtime.errors import LoadError

from .files import read_json, read_json_if_there

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# What generation_config.json may recommend and our sampling parameters know.
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`."""
    return read_json(folder / "config.json")


def generation_defaults(folder: Path) -> dict[str, Any]:
    """The sampling settings that `generation_config.json` recommends; none for a model meant to be greedy."""
    given = read_json_if_there(folder / "generation_config.json")
    if not given.get("do_sample", False):
        return {}
    return {name: given[name] for name in _SAMPLING if given.get(name) is not None}


def weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight as (name, tensor as stored), one at a time, shard after shard.

    All files and tensors the index names are checked before the first weight is handed out, so a half-copied
    folder fails at once. Raises LoadError naming the file.
    """
    expected = _shards(folder)
    for path, names in expected.items():
        _check_shard(path, names)
    for path in expected:
        with safe_open(path, framework="pt") as shard:
            names = shard.keys()
            for name in names:
                yield name, shard.get_tensor(name)


def _shards(folder: Path) -> Mapping[Path, Sequence[str]]:
    """The weight files and, where there is an index, the tensors each has to hold."""
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise LoadError(f"{folder / _INDEX}: has no weight_map")
        shards: dict[Path, list[str]] = {}
        for name, file in weight_map.items():
            shards.setdefault(folder / str(file), []).append(name)
        return dict(sorted(shards.items()))
    if (folder / _SINGLE).is_file():
        return {folder / _SINGLE: ()}
    if any(folder.glob("model-*.safetensors")):
        raise LoadError(f"{folder / _INDEX}: no such file, but there are shards it should list")
    if any(folder.glob("*.bin")):
        raise LoadError(f"{folder}: the weights are pickled (.bin), only safetensors and GGUF are read")
    raise LoadError(f"{folder}: there are no weights ({_SINGLE} or {_INDEX})")


def _check_shard(path: Path, names: Sequence[str]) -> None:
    if not path.is_file():
        raise LoadError(f"{path}: no such file, but {_INDEX} lists it")
    try:
        with safe_open(path, framework="pt") as shard:
            missing = sorted(set(names) - set(shard.keys()))
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{path}: not a whole safetensors file: {error}") from None
    if missing:
        raise LoadError(f"{path}: lacks tensor {missing[0]!r}, which {_INDEX} places there")
