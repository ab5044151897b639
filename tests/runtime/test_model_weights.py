from collections.abc import Iterator

import pytest
import torch

from tests.runtime.hf_models import config_json, hf_config, make_pair
from tests.runtime.paged_driver import PagedDriver
from trunkline.runtime.errors import LoadError
from trunkline.runtime.models import CausalLM, ModelConfig, build_model


def empty_model(variant: str = "qwen3") -> CausalLM:
    return build_model(ModelConfig.from_hf_config(config_json(hf_config(variant))), torch.float32)


def weights(variant: str = "qwen3") -> dict[str, torch.Tensor]:
    return dict(make_pair(variant).theirs.state_dict())


def test_the_order_and_dtype_of_a_checkpoint_do_not_matter() -> None:
    model = empty_model()
    model.load_weights((name, tensor.double()) for name, tensor in reversed(weights().items()))
    (ours,) = PagedDriver(model).greedy([[1, 2, 3]], 4, 16)
    (theirs,) = PagedDriver(make_pair("qwen3").ours).greedy([[1, 2, 3]], 4, 16)
    assert torch.equal(torch.cat(ours.logits), torch.cat(theirs.logits))


@pytest.mark.parametrize("variant", ["qwen3", "llama"])
def test_a_model_names_the_weights_that_it_wants(variant: str) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in weights(variant).items()}
    assert empty_model(variant).weight_shapes == found


def test_rotary_frequencies_and_a_tied_head_are_skipped() -> None:
    found = weights("llama-tied") | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    found["lm_head.weight"] = torch.full_like(found["lm_head.weight"], torch.nan)
    model = empty_model("llama-tied")
    model.load_weights(found.items())
    (running,) = PagedDriver(model).greedy([[1, 2, 3]], 1, 16)
    assert torch.cat(running.logits).isfinite().all()


def test_missing_weights_are_named() -> None:
    found = weights()
    del found["model.layers.1.self_attn.k_norm.weight"], found["model.norm.weight"]
    with pytest.raises(LoadError, match=r"lacks model.layers.1.self_attn.k_norm.weight, model.norm.weight$"):
        empty_model().load_weights(found.items())


def test_many_missing_weights_are_counted() -> None:
    with pytest.raises(LoadError, match=r"lacks model.embed_tokens.weight, .* and 31 more$"):
        empty_model().load_weights([])


def test_unexpected_weights_are_named() -> None:
    found = weights() | {"model.layers.3.mlp.up_proj.weight": torch.ones(2), "visual.weight": torch.ones(2)}
    with pytest.raises(LoadError, match=r"doesn't know: model.layers.3.mlp.up_proj.weight, visual.weight$"):
        empty_model().load_weights(found.items())


def test_a_bias_the_config_does_not_announce_is_refused() -> None:
    found = weights() | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(144)}
    with pytest.raises(LoadError, match=r"doesn't know: model.layers.0.self_attn.q_proj.bias"):
        empty_model().load_weights(found.items())


@pytest.mark.parametrize("shape", [(96, 47), (64, 96), (96,), (1, 64)])
def test_a_wrong_shape_is_named(shape: tuple[int, ...]) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    with pytest.raises(LoadError, match=rf"{name} has shape .*; the config asks for \[96, 64\]"):
        empty_model().load_weights((weights() | {name: torch.zeros(shape)}).items())


def test_a_weight_given_twice_is_refused() -> None:
    def twice() -> Iterator[tuple[str, torch.Tensor]]:
        yield from weights().items()
        yield "model.norm.weight", torch.ones(64)

    with pytest.raises(LoadError, match=r"model.norm.weight is given twice"):
        empty_model().load_weights(twice())
