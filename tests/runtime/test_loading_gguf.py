"""GGUF files: every quantisation, llama.cpp's names and row order, metadata, and files that are no good."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from tests.oracle import ggml_blocks
from tests.runtime import loading_factories as tiny
from trunkline.runtime.errors import LoadError, TokenizerError, UnknownArchitectureError
from trunkline.runtime.loading import gguf_config, gguf_weights, load_model, load_tokenizer
from trunkline.runtime.loading.gguf_file import GGUFFile

Kind = GGMLQuantizationType


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    file = GGUFFile(path)
    return dict(gguf_weights.weights(file, gguf_config.hf_config(file)))


def config_of(path: Path, architecture: str = "llama", tensors: Any = None, **changes: Any) -> dict[str, Any]:
    values = tiny.metadata(architecture, **changes)
    return gguf_config.hf_config(GGUFFile(tiny.write_gguf(path / "m.gguf", values, tensors)))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_weights_come_back_under_their_hugging_face_names_and_in_their_row_order(
    tmp_path: Path, architecture: str
) -> None:
    weights = tiny.hf_weights(architecture, tied=False)
    path = tiny.write_gguf(
        tmp_path / "m.gguf", tiny.metadata(architecture), tiny.as_llama_cpp(weights, architecture)
    )

    loaded = read_weights(path)

    assert loaded.keys() == weights.keys()
    for name, values in weights.items():
        assert torch.equal(loaded[name], torch.from_numpy(values)), name


@pytest.mark.parametrize(
    "kind",
    [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1],
    ids=lambda kind: kind.name,
)
def test_a_matrix_is_read_as_the_values_its_quantisation_stands_for(tmp_path: Path, kind: Kind) -> None:
    weights = tiny.hf_weights()
    path = tiny.write_gguf(tmp_path / "m.gguf", tensors=tiny.as_llama_cpp(weights), kind=kind)

    loaded = read_weights(path)

    down = "model.layers.0.mlp.down_proj.weight"
    stands_for = dequantize(quantize(weights[down], kind), kind)
    assert torch.equal(loaded[down].float(), torch.from_numpy(stands_for.astype(np.float32)))
    error = (loaded[down].float() - torch.from_numpy(weights[down])).abs().max()
    assert error < {Kind.F32: 1e-9, Kind.F16: 2e-3, Kind.BF16: 2e-2, Kind.Q8_0: 4e-2}.get(kind, 0.5)
    query = "model.layers.0.self_attn.q_proj.weight"
    assert (loaded[query].float() - torch.from_numpy(weights[query])).abs().max() < 0.5


@pytest.mark.parametrize(
    ("kind", "oracle"), [(Kind.Q4_K, ggml_blocks.q4_k), (Kind.Q6_K, ggml_blocks.q6_k)], ids=["Q4_K", "Q6_K"]
)
def test_k_quant_blocks_are_decoded_as_their_layout_says(tmp_path: Path, kind: Kind, oracle: Any) -> None:
    rng = np.random.default_rng(3)
    _, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (tiny.HIDDEN, block_bytes), np.uint8)
    halves = rng.standard_normal((tiny.HIDDEN, 2)).astype(np.float16).view(np.uint8)
    if kind is Kind.Q4_K:
        blocks[:, :4] = halves
    else:
        blocks[:, -2:] = halves[:, :2]
    tensors = tiny.as_llama_cpp(tiny.hf_weights())
    tensors["blk.0.ffn_down.weight"] = blocks

    others = {name: data for name, data in tensors.items() if data.ndim == 1 or data is blocks}
    others["token_embd.weight"] = np.repeat(blocks, 2, axis=0)[: len(tiny.TOKENS)]
    loaded = read_weights(tiny.write_gguf(tmp_path / "m.gguf", tensors=others, kind=kind))

    expected = torch.tensor([oracle(block.tobytes()) for block in blocks])
    assert torch.allclose(loaded["model.layers.0.mlp.down_proj.weight"], expected, rtol=1e-6, atol=1e-6)


def test_a_gguf_file_and_a_folder_of_the_same_weights_make_the_same_model(tmp_path: Path) -> None:
    gguf_file = tiny.write_gguf(tmp_path / "tiny.gguf")
    folder = tiny.write_folder(tmp_path / "tiny")

    from_gguf = load_model(gguf_file, dtype="float32", device="cpu")
    from_folder = load_model(folder, dtype="float32", device="cpu")

    assert from_gguf.name == from_folder.name == "tiny"
    assert from_gguf.config == from_folder.config
    assert from_gguf.eos_token_ids == from_folder.eos_token_ids == {2}
    text = "hello world 123\n\n<|im_end|>"
    assert from_gguf.tokenizer.encode(text).tolist() == from_folder.tokenizer.encode(text).tolist()
    every_token = torch.arange(from_gguf.config.vocab_size)
    left, right = (vars(loaded.model)["_embedding"](every_token) for loaded in (from_gguf, from_folder))
    assert torch.equal(left, right)


def test_the_container_is_read_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata(general__alignment=64, general__ratio=0.25))
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)

    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == {key: field.contents() for key, field in fields.items()}
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert (mine.offset, mine.num_bytes) == (tensor.data_offset, tensor.n_bytes)


def test_metadata_becomes_the_configuration_hugging_face_would_state(tmp_path: Path) -> None:
    config = config_of(tmp_path, llama__attention__key_length=64, llama__rope__freq_base=5e5)

    assert config == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e5,
        "vocab_size": len(tiny.TOKENS),
        "tie_word_embeddings": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def test_an_output_matrix_and_biases_show_in_the_configuration(tmp_path: Path) -> None:
    tensors = tiny.as_llama_cpp(tiny.hf_weights("qwen2", tied=False), "qwen2")

    config = config_of(tmp_path, "qwen2", tensors)

    assert (config["tie_word_embeddings"], config["attention_bias"]) == (False, True)


@pytest.mark.parametrize(
    ("changes", "scaling"),
    [
        ({}, None),
        ({"llama__rope__scaling__type": "none"}, None),
        ({"llama__rope__scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "llama__rope__scaling__type": "yarn",
                "llama__rope__scaling__factor": 4.0,
                "llama__rope__scaling__original_context_length": 32,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        (
            {
                "llama__rope__scaling__type": "yarn",
                "llama__rope__scaling__factor": 1.0,
                "llama__rope__scaling__original_context_length": 32,
                "llama__rope__scaling__attn_factor": 0.5,
                "llama__rope__scaling__yarn_beta_fast": 16.0,
            },
            {
                "rope_type": "yarn",
                "factor": 1.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 0.5,
                "beta_fast": 16.0,
            },
        ),
    ],
)
def test_rope_scaling_is_translated(tmp_path: Path, changes: dict[str, Any], scaling: Any) -> None:
    assert config_of(tmp_path, **changes).get("rope_scaling") == scaling


def llama3_divisors(factor: float, theta: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What llama.cpp's converter stores for Llama 3.1 and later, written out band by band."""
    divisors = []
    for frequency in 1.0 / theta ** (np.arange(0, tiny.HEAD_DIM, 2) / tiny.HEAD_DIM):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_the_divisors_of_llama_3_become_its_scaling_rule(tmp_path: Path) -> None:
    tensors = tiny.as_llama_cpp(tiny.hf_weights())
    tensors["rope_freqs.weight"] = llama3_divisors(32.0, 5e5)

    config = config_of(tmp_path, tensors=tensors, llama__rope__freq_base=5e5)

    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in read_weights(tmp_path / "m.gguf")


def test_other_divisors_than_those_of_llama_3_are_refused(tmp_path: Path) -> None:
    tensors = tiny.as_llama_cpp(tiny.hf_weights())
    tensors["rope_freqs.weight"] = np.linspace(1, 8, tiny.HEAD_DIM // 2, dtype=np.float32)

    with pytest.raises(UnknownArchitectureError, match=r"m\.gguf.*rope_freqs\.weight"):
        config_of(tmp_path, tensors=tensors)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        (
            {"general__architecture": "mamba"},
            UnknownArchitectureError,
            "architecture 'mamba' is not supported",
        ),
        ({"llama__expert_count": 8}, UnknownArchitectureError, "mixture of experts"),
        ({"llama__block_count": None}, LoadError, "'llama.block_count' is missing"),
        ({"llama__block_count": "many"}, LoadError, "'llama.block_count' is 'many'"),
        ({"llama__block_count": 0}, LoadError, "'llama.block_count' is 0"),
        (
            {"llama__attention__head_count_kv": [2, 1]},
            UnknownArchitectureError,
            "differs from layer to layer",
        ),
        ({"llama__rope__scaling__type": "longrope"}, UnknownArchitectureError, "'longrope' is not supported"),
        ({"llama__block_count": 2}, LoadError, "'llama.block_count' is 2, but there are 1 layers"),
        ({"split__count": 3}, LoadError, "one part of a split GGUF model"),
        ({"tokenizer__ggml__model": "t5"}, TokenizerError, "tokenizer model 't5' is not supported"),
        ({"tokenizer__ggml__pre": "chameleon"}, TokenizerError, "pre-tokenizer 'chameleon' is not supported"),
        ({"tokenizer__ggml__tokens": None}, TokenizerError, "'tokenizer.ggml.tokens' is missing"),
        ({"tokenizer__ggml__token_type": [1, 1]}, TokenizerError, "2 token types"),
        ({"tokenizer__ggml__eos_token_id": 9999}, TokenizerError, "'tokenizer.ggml.eos_token_id' is 9999"),
        ({"tokenizer__ggml__merges": ["no such"]}, TokenizerError, "can't be built"),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_in_one_line_that_names_it(
    tmp_path: Path, changes: dict[str, Any], error: type[LoadError], says: str
) -> None:
    path = tiny.write_gguf(tmp_path / "bad.gguf", tiny.metadata(**changes))

    with pytest.raises(error) as caught:
        load_model(path, dtype="float32", device="cpu")

    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tensor_of_no_known_layer_is_refused_by_name(tmp_path: Path) -> None:
    tensors = tiny.as_llama_cpp(tiny.hf_weights()) | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    path = tiny.write_gguf(tmp_path / "m.gguf", tensors=tensors)

    with pytest.raises(UnknownArchitectureError, match=r"attn_sinks"):
        read_weights(path)


def test_queries_that_are_no_whole_heads_are_refused_by_name(tmp_path: Path) -> None:
    tensors = tiny.as_llama_cpp(tiny.hf_weights())
    tensors["blk.0.attn_q.weight"] = tensors["blk.0.attn_q.weight"][:-1]
    path = tiny.write_gguf(tmp_path / "m.gguf", tensors=tensors)

    with pytest.raises(LoadError, match=r"m\.gguf: 'blk\.0\.attn_q\.weight' has 255 rows, no whole 4 heads"):
        read_weights(path)


def test_a_file_cut_anywhere_is_called_truncated(tmp_path: Path) -> None:
    whole = tiny.write_gguf(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"

    for length in [5, 20, 100, 1000, 4000, len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(LoadError, match=r"cut\.gguf: truncated"):
            GGUFFile(cut)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "can't be read"),
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(60), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "version 50331648 is not supported"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77),
            "type 77",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), "truncated"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "alien.gguf"
    path.write_bytes(content)

    with pytest.raises(LoadError, match=says) as caught:
        load_tokenizer(path)

    assert "alien.gguf" in str(caught.value)


def test_recommended_sampling_settings_are_kept(tmp_path: Path) -> None:
    values = tiny.metadata(general__sampling__temp=0.5, general__sampling__top_k=40)
    path = tiny.write_gguf(tmp_path / "m.gguf", values)

    loaded = load_model(path, dtype="float32", device="cpu")

    assert loaded.generation_defaults == {"temperature": 0.5, "top_k": 40}
