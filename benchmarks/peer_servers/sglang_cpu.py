"""Starts SGLang's server on a CPU for which there are neither its CUDA nor its AMX kernels; run by SGLang's Python.

A text model needs two imports of it only by name: torchvision, of which a CPU build of torch may have no match, and
vLLM's rotary kernel, beside which it has one of its own. Both are answered with empty modules.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types


class Placeholder(types.ModuleType):
    """A package in which every name is an empty class."""

    __path__ = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class TorchvisionFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a placeholder for torchvision and all below it."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Placeholder(spec.name)

    def exec_module(self, module):
        pass


def answer_imports() -> None:
    """Puts the empty modules in place."""
    # Transformers asks once whether torchvision is there and keeps the answer: it has to ask before this.
    importlib.import_module("transformers.image_utils")
    importlib.import_module("transformers.utils").is_torchvision_available()
    sys.meta_path.insert(0, TorchvisionFinder())
    vllm, kernels = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    vllm.__path__, kernels.rotary_embedding = [], None
    sys.modules |= {"vllm": vllm, "vllm._custom_ops": kernels}


# Not under the guard below: SGLang's own processes import this file too, and need the same answers.
answer_imports()

if __name__ == "__main__":
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(sys.argv[1:]))
