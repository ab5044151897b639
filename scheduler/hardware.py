"""What the cost model has to know of a machine and of a model: figures from data sheets and model cards."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from trunkline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or `count` equal ones that share every layer (tensor parallel).

    Units: FLOP/s and bytes/s of one device; bytes of one device; seconds. `link_bandwidth` is one direction
    of the interconnect between the devices, `host_bandwidth` the copy rate to host memory (swapped pages).
    Efficiencies are the shares of the peak that large matrix products and long reads really reach.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    link_bandwidth: float
    host_bandwidth: float
    count: int = 1
    flops_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    link_latency: float = 8e-6
    layer_overhead: float = 15e-6
    step_overhead: float = 1e-3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            minimum_excluded = field.name not in ("link_latency", "layer_overhead", "step_overhead")
            if field.name != "name" and (value < 0 or (minimum_excluded and value == 0)):
                raise ConfigError(f"device {self.name!r}: {field.name} is out of range: {value}")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder of the Llama family, as far as its cost depends on it.

    `weight_bytes` and `kv_bytes` are bytes per stored number: 2 for bf16, 1 for int8 or fp8, 0.5 for int4.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool = False
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("name", "tied_embeddings") and value <= 0:
                raise ConfigError(f"model {self.name!r}: {field.name} must be positive, got {value}")

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer's matrix products (attention projections and the gated MLP)."""
        query = self.num_heads * self.head_dim
        key_value = 2 * self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (query + key_value) + query * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_parameters(self) -> int:
        """All parameters but norms and biases, which do not matter here."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.num_layers * self.layer_parameters + embeddings

    @property
    def stored_bytes(self) -> float:
        """Bytes of all weights, over all devices together."""
        return self.num_parameters * self.weight_bytes

    def kv_token_bytes(self, num_devices: int = 1) -> float:
        """Bytes of one token's keys and values on one of `num_devices`; too few heads are copied."""
        heads = -(-self.num_kv_heads // num_devices)
        return 2 * self.num_layers * heads * self.head_dim * self.kv_bytes


_GB = 1e9
_MIB = 2**20

# Dense bf16 rates and memory bandwidth as the makers print them; memory as the driver reports it. The
# efficiencies are assumptions, in the range that published serving measurements reach; a calibration
# replaces them.
DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device("A100-80G", 312e12, 2039 * _GB, 81920 * _MIB, 300 * _GB, 25 * _GB, flops_efficiency=0.62),
        Device("H100", 989e12, 3350 * _GB, 81559 * _MIB, 450 * _GB, 50 * _GB, flops_efficiency=0.52),
        Device("H200", 989e12, 4800 * _GB, 143771 * _MIB, 450 * _GB, 50 * _GB, flops_efficiency=0.52),
        Device(
            # Two server cores with bf16 matrix units: the rates are measured ones, so nothing is taken off
            # them.
            "cpu-2core",
            430e9,
            28.6 * _GB,
            23 * 2**30,
            link_bandwidth=10 * _GB,
            host_bandwidth=10 * _GB,
            flops_efficiency=1.0,
            bandwidth_efficiency=1.0,
            layer_overhead=60e-6,
            step_overhead=2e-3,
        ),
    )
}

MODELS: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256),
        ModelShape("Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256),
        ModelShape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, tied_embeddings=True),
        ModelShape("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, 152064),
    )
}

_DEVICE_ALIASES = {"a100": "A100-80G", "cpu": "cpu-2core"}


def find_device(text: str) -> Device:
    """The device named by `text`: a preset, or several of one (`"8xH100"`), in any letter case.

    >>> find_device("2xa100").count
    2
    """
    match = re.fullmatch(r"\s*(?:(\d+)\s*[x×*]\s*)?(\S+)\s*", text)
    count = int(match[1] or 1) if match else 1
    wanted = match[2].lower() if match else ""
    wanted = _DEVICE_ALIASES.get(wanted, wanted).lower()
    for name, device in DEVICES.items():
        if name.lower() == wanted:
            return replace(device, count=count)
    raise ConfigError(f"device {text!r} is unknown; known: {', '.join(DEVICES)}, or several as 8xH100")


def find_model(text: str) -> ModelShape:
    """The preset model named by `text`, in any letter case; an organisation before a slash is ignored."""
    wanted = text.rsplit("/", 1)[-1].lower()
    for name, shape in MODELS.items():
        if wanted in (name.lower(), f"{name.lower()}-instruct"):
            return shape
    raise ConfigError(
        f"model {text!r} is unknown; known: {', '.join(MODELS)}, or a model's directory or GGUF file"
    )


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """The shape in a Hugging Face `config.json` (a dense decoder); names the key that is missing."""
    config = config.get("text_config", config)

    def need(key: str) -> int:
        value = config.get(key)
        if not isinstance(value, int) or value <= 0:
            raise ConfigError(f"model {name!r}: its config has no usable {key!r} (found {value!r})")
        return value

    heads = need("num_attention_heads")
    return ModelShape(
        name=name,
        num_layers=need("num_hidden_layers"),
        hidden_size=need("hidden_size"),
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or need("hidden_size") // heads,
        intermediate_size=need("intermediate_size"),
        vocab_size=need("vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
