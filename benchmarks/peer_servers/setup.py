"""Installs the peers and makes the forms of the embedded model that they read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peer_servers.definitions import (
    BF16,
    HF,
    PEERS,
    Q4_1,
    Q8_0,
    llamacpp_binary,
    python_of,
    version,
)
from trunkline.runtime.loading.source import resolve

__all__ = ["install", "prepare_models"]


def install(name: str, folder: Path) -> None:
    """Makes FOLDER/NAME, unless it is there, and installs the peer into it; llama.cpp is compiled for this CPU.

    vLLM also wants the system's `libtcmalloc_minimal.so.4` (Debian: `apt-get install libtcmalloc-minimal4`).
    """
    python = python_of(folder, name)
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
    for step in PEERS[name].steps:
        environment = os.environ | PEERS[name].environment
        subprocess.run([python, "-m", "pip", *step], env=environment, check=True)


def prepare_models(folder: Path) -> None:
    """Writes what FOLDER/models lacks: the embedded GGUF file, a Hugging Face folder in bfloat16, GGUF in BF16 and Q8_0.

    The last two need llama.cpp and are left out, with a line, where it is not installed.
    """
    models = folder / "models"
    models.mkdir(parents=True, exist_ok=True)
    if not (models / Q4_1).exists():
        shutil.copyfile(resolve(None).path, models / Q4_1)
    if not (models / HF).exists():
        _write_hugging_face(models / Q4_1, models / HF)
    if version("llama.cpp", folder) is None:
        print(f"{BF16} and {Q8_0} need llama.cpp in {folder}: not written")
        return
    quantize = str(llamacpp_binary(folder, "llama-quantize"))
    for name, source, kind in ((BF16, Q4_1, "BF16"), (Q8_0, BF16, "Q8_0")):
        if not (models / name).exists():
            command = [quantize, "--allow-requantize", str(models / source), str(models / name), kind]
            subprocess.run(command, check=True)


def _write_hugging_face(gguf: Path, target: Path) -> None:
    """The weights as our own loader reads them, rounded to bfloat16; settings and tokenizer by Transformers."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer

    from trunkline.runtime.loading import gguf_config, gguf_weights
    from trunkline.runtime.loading.gguf_file import GGUFFile

    partial = target.with_suffix(".partial")
    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(**place).save_pretrained(partial)
    config = AutoConfig.from_pretrained(**place)
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    config.save_pretrained(partial)
    file = GGUFFile(gguf)
    weights = gguf_weights.weights(file, gguf_config.hf_config(file))
    rounded = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights}
    save_file(rounded, partial / "model.safetensors", metadata={"format": "pt"})
    partial.rename(target)
