"""From what a person calls a model to its shape: a preset's name, a model directory, a GGUF file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from trunkline.errors import ConfigError
from trunkline.scheduler.calibration import Calibration, calibrate, read_measured_steps
from trunkline.scheduler.hardware import ModelShape, find_model, shape_from_config
from trunkline.scheduler.roofline import Roofline

_GGUF_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "vocab_size": "vocab_size",
}


def resolve_model(text: str) -> ModelShape:
    """The shape of the model that `text` names.

    Raises:
        ConfigError: no preset and no path, or a path without what is needed; says which.
    """
    path = Path(text)
    if path.is_dir():
        return _from_directory(path)
    if path.is_file():
        return _from_gguf(path)
    return find_model(text)


def _from_directory(path: Path) -> ModelShape:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model directory {str(path)!r} has no readable config.json: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path / 'config.json'} is not a JSON object")
    return shape_from_config(path.name, config)


def _from_gguf(path: Path) -> ModelShape:
    """The shape in a GGUF file's metadata; bytes per weight are what its tensors take on average."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} is not a readable GGUF file: {error}") from error

    def field(name: str) -> Any:
        found = reader.fields.get(name)
        return None if found is None else found.contents()

    architecture = field("general.architecture")
    config = {name: field(f"{architecture}.{key}") for name, key in _GGUF_KEYS.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if config["vocab_size"] is None:
        config["vocab_size"] = len(field("tokenizer.ggml.tokens") or ())
    config["tie_word_embeddings"] = "output.weight" not in tensors
    shape = shape_from_config(path.name, config)
    stored = sum(int(tensor.n_bytes) for tensor in tensors.values())
    elements = sum(int(tensor.n_elements) for tensor in tensors.values())
    return replace(shape, weight_bytes=stored / elements)


def calibrate_from_file(roofline: Roofline, path: Path) -> Calibration:
    """Fit the roofline to the measured steps in a JSON file: a list of objects, at the top or under "steps".

    Raises:
        ConfigError: names the file, or the step, and what is wrong with it.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"measured steps {str(path)!r} can't be read: {error}") from error
    rows = document.get("steps") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(
            f"measured steps {str(path)!r} must be a list of objects, or one under the key 'steps'"
        )
    return calibrate(roofline, read_measured_steps(rows))
