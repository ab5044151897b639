"""The cost model: literal seconds on a machine with round figures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trunkline.errors import ConfigError
from trunkline.scheduler.calibration import MeasuredStep, calibrate, read_measured_steps
from trunkline.scheduler.hardware import (
    DEVICES,
    MODELS,
    Device,
    ModelShape,
    find_device,
    find_model,
    shape_from_config,
)
from trunkline.scheduler.roofline import Roofline, StepLoad, kv_pages, scaled


def tiny_model(**changes: Any) -> ModelShape:
    """Two layers of 48 parameters each, a vocabulary of 10: easy to count by hand."""
    shape = ModelShape(
        "tiny",
        num_layers=2,
        hidden_size=4,
        num_heads=2,
        num_kv_heads=1,
        head_dim=1,
        intermediate_size=2,
        vocab_size=10,
    )
    return replace(shape, **changes)


def round_device(**changes: Any) -> Device:
    """1000 FLOP/s and 100 bytes/s, no overheads, every efficiency 1."""
    device = Device(
        "round",
        flops=1000.0,
        bandwidth=100.0,
        memory=1000.0,
        link_bandwidth=10.0,
        host_bandwidth=5.0,
        flops_efficiency=1.0,
        bandwidth_efficiency=1.0,
        link_latency=0.0,
        layer_overhead=0.0,
        step_overhead=0.0,
    )
    return replace(device, **changes)


def decode(*contexts: int) -> StepLoad:
    return StepLoad.of_chunks((1, context - 1, True) for context in contexts)


def test_load_of_a_chunk_counts_causal_attention() -> None:
    assert StepLoad.of_chunks([(3, 5, True), (1, 9, False)]) == StepLoad(
        tokens=4, sampled=1, attended=6 + 7 + 8 + 10, context=8 + 10
    )


def test_later_load_is_the_load_of_longer_contexts() -> None:
    assert decode(10, 20).later(3) == decode(13, 23)


def test_parameters_of_a_tiny_model_are_countable() -> None:
    model = tiny_model()
    # q 4x2, k and v 4x1 each, o 2x4; gate, up and down 4x2 each.
    assert model.layer_parameters == 8 + 8 + 8 + 24
    assert model.num_parameters == 2 * 48 + 2 * 40
    assert tiny_model(tied_embeddings=True).num_parameters == 2 * 48 + 40


@pytest.mark.parametrize(
    ("name", "billions", "kv_bytes"),
    [
        ("Llama-3.1-8B", 8.03, 131072),
        ("Llama-3.1-70B", 70.55, 327680),
        ("SmolLM2-135M", 0.1345, 23040),
        ("Qwen2.5-7B", 7.61, 57344),
    ],
)
def test_preset_models_have_their_published_sizes(name: str, billions: float, kv_bytes: int) -> None:
    assert MODELS[name].num_parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert MODELS[name].kv_token_bytes() == kv_bytes


def test_decode_step_is_bound_by_reading_the_weights() -> None:
    roofline = Roofline(tiny_model(), round_device())
    # (2 x 48 + 40 weights) x 2 bytes / 100; (context 5 + 1 written) x 8 bytes / 100
    assert roofline.step_seconds(decode(5)) == pytest.approx(2.72 + 0.48)


def test_large_prefill_is_bound_by_arithmetic() -> None:
    roofline = Roofline(tiny_model(), round_device())
    load = StepLoad.of_chunks([(100, 0, True)])
    linear = (100 * 2 * 96 + 2 * 40) / 1000
    attention = 5050 * 4 * 2 * 2 / 1000
    assert roofline.step_seconds(load) == pytest.approx(linear + attention)


def test_efficiencies_and_overheads_enter_as_stated() -> None:
    device = round_device(bandwidth_efficiency=0.5, layer_overhead=0.25, step_overhead=1.0)
    assert Roofline(tiny_model(), device).step_seconds(decode(5)) == pytest.approx(2 * 3.2 + 2 * 0.25 + 1.0)


def test_two_devices_halve_the_weights_and_pay_for_all_reduces() -> None:
    roofline = Roofline(tiny_model(), round_device(count=2, link_latency=0.5))
    # The single key-value head is copied to both devices. 4 all-reduces of 1 token x 4 numbers x 2 bytes.
    reduces = 4 * (2 * (1 / 2) * 8 / 10 + 0.5)
    assert roofline.step_seconds(decode(5)) == pytest.approx(1.36 + 0.48 + reduces)


def test_copies_and_swaps_cost_their_bytes() -> None:
    roofline = Roofline(tiny_model(), round_device(step_overhead=1.0), page_size=2)
    load = StepLoad(tokens=0, sampled=0, attended=0, context=0, copied_pages=3, swapped_pages=1)
    assert roofline.step_seconds(load) == pytest.approx(1.0 + 3 * 2 * 16 / 100 + 16 / 5)


def test_pages_are_what_the_weights_leave() -> None:
    # 1000 bytes x 0.9 - 176 weights x 2 bytes = 548; a page of 4 tokens takes 32.
    assert kv_pages(tiny_model(), round_device(), page_size=4) == 17


def test_weights_that_do_not_fit_are_refused_with_both_sizes() -> None:
    with pytest.raises(
        ConfigError, match=r"Llama-3.1-70B needs 141.1 GB .* 1 x A100-80G at 90% have 77.3 GB"
    ):
        kv_pages(MODELS["Llama-3.1-70B"], DEVICES["A100-80G"], page_size=16)


def test_utilisation_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"utilisation must be in \(0, 1\], got 1.5"):
        kv_pages(tiny_model(), round_device(), 16, 1.5)


def test_fewer_bits_store_less() -> None:
    assert scaled(tiny_model(), weight_bits=4, kv_bits=8).stored_bytes == 176 * 0.5
    assert scaled(tiny_model(), kv_bits=8).kv_token_bytes() == tiny_model().kv_token_bytes() / 2


def test_devices_and_models_are_found_in_any_letter_case() -> None:
    assert find_device("8xh100") == replace(DEVICES["H100"], count=8)
    assert find_device("a100") == DEVICES["A100-80G"]
    assert find_model("meta-llama/llama-3.1-8b-instruct") == MODELS["Llama-3.1-8B"]


@pytest.mark.parametrize("text", ["TPU", "0xH100", "", "2x", "8 H100 x"])
def test_unknown_devices_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match=r"H100|out of range"):
        find_device(text)


def test_unknown_models_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'gpt-9' is unknown; known: Llama-3.1-8B"):
        find_model("gpt-9")


def test_config_of_a_checkpoint_becomes_a_shape() -> None:
    config = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    assert shape_from_config("SmolLM2-135M", config) == MODELS["SmolLM2-135M"]
    with pytest.raises(
        ConfigError, match=r"'odd': its config has no usable 'intermediate_size' \(found None\)"
    ):
        shape_from_config("odd", {key: value for key, value in config.items() if key != "intermediate_size"})


def measured(roofline: Roofline, noise: float = 0.0) -> list[MeasuredStep]:
    """Decode steps of many widths and prefills of many lengths, timed by a roofline with seeded noise."""
    rng = np.random.default_rng(7)
    loads = [decode(*rng.integers(50, 4000, size)) for size in (1, 2, 4, 8, 16, 32, 64, 128)]
    loads += [
        StepLoad.of_chunks([(int(n), int(s), True)]) for n in (128, 512, 2048, 4096) for s in (0, 1000, 8000)
    ]
    return [
        MeasuredStep(load, roofline.step_seconds(load) * (1 + noise * rng.standard_normal()))
        for load in loads
    ]


def test_calibration_recovers_planted_efficiencies() -> None:
    truth = replace(
        DEVICES["H100"],
        flops_efficiency=0.37,
        bandwidth_efficiency=0.71,
        layer_overhead=0.0,
        step_overhead=0.0042,
    )
    steps = measured(Roofline(MODELS["Llama-3.1-8B"], truth))
    result = calibrate(Roofline(MODELS["Llama-3.1-8B"], DEVICES["H100"]), steps)
    fitted = result.roofline.device
    assert fitted.flops_efficiency == pytest.approx(0.37, rel=1e-6)
    assert fitted.bandwidth_efficiency == pytest.approx(0.71, rel=1e-6)
    assert fitted.step_overhead == pytest.approx(0.0042, rel=1e-6)
    assert result.max_error < 1e-9
    assert result.fitted == ("flops_efficiency", "bandwidth_efficiency", "step_overhead")


def test_calibration_says_how_far_noisy_steps_are() -> None:
    truth = replace(DEVICES["A100-80G"], flops_efficiency=0.45, bandwidth_efficiency=0.6)
    steps = measured(Roofline(MODELS["Llama-3.1-8B"], truth), noise=0.03)
    result = calibrate(Roofline(MODELS["Llama-3.1-8B"], DEVICES["A100-80G"]), steps)
    assert result.roofline.device.flops_efficiency == pytest.approx(0.45, rel=0.05)
    assert result.roofline.device.bandwidth_efficiency == pytest.approx(0.6, rel=0.05)
    assert 0.01 < result.mean_error < 0.04
    assert result.mean_error < result.max_error < 0.12


def test_calibration_with_decode_only_keeps_the_arithmetic_preset() -> None:
    roofline = Roofline(MODELS["Llama-3.1-8B"], DEVICES["H100"])
    steps = [
        MeasuredStep(load, 2 * roofline.step_seconds(load)) for load in map(decode, (10, 500, 2000, 9000))
    ]
    result = calibrate(roofline, steps)
    assert result.fitted == ("bandwidth_efficiency", "step_overhead")
    assert result.roofline.device.flops_efficiency == pytest.approx(DEVICES["H100"].flops_efficiency)


def test_measured_steps_are_read_with_defaults() -> None:
    rows = [{"tokens": 4, "attended": 400, "seconds": 0.5, "requests": 4}]
    assert read_measured_steps(rows) == [MeasuredStep(StepLoad(4, 4, 400, 400), 0.5)]


@pytest.mark.parametrize("bad", [{"tokens": 0}, {"seconds": "fast"}, {"seconds": -1}, {"attended": None}])
def test_bad_measured_steps_are_refused_by_number_and_key(bad: dict[str, object]) -> None:
    good: dict[str, object] = {"tokens": 4, "attended": 400, "seconds": 0.5}
    key = next(iter(bad))
    with pytest.raises(ConfigError, match=rf"measured step 2: {key} must be a positive number, got"):
        read_measured_steps([good, good | bad])


def test_too_few_measured_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least 4 measured steps, got 1"):
        calibrate(Roofline(tiny_model(), round_device()), [MeasuredStep(decode(5), 1.0)])
