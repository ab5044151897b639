"""Every supported model against transformers, with random weights and paged KV."""

import numpy as np
import pytest
import torch

from tests.runtime.hf_models import VARIANTS, VOCAB, make_pair
from tests.runtime.paged_driver import PagedDriver
from trunkline.attention import AttentionMetadata, native
from trunkline.runtime.models import build_model

PROMPT_LENGTHS = (1, 29, 60)
NEW_TOKENS = 64


def prompts(seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, n).tolist() for n in PROMPT_LENGTHS]


BACKENDS = ["torch", *(["cpu"] if native.supports(torch.float32) else [])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("budget", [7, 512])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_equal_transformers(variant: str, budget: int, backend: str) -> None:
    pair = make_pair(variant)
    for running in PagedDriver(pair.ours, backend).greedy(prompts(), NEW_TOKENS, budget):
        computed = running.tokens[:-1]
        with torch.inference_mode():
            theirs = pair.theirs(torch.tensor([computed])).logits[0]
        ours = torch.cat(running.logits)
        difference = (ours - theirs).abs()
        position, token = divmod(int(difference.argmax()), VOCAB)
        where = f"position {position}, token {token}, logit {theirs[position, token]:.3f}"
        print(f"{variant}: largest difference {difference.max():.2e} at {where}")
        assert difference.max() < 1e-4
        # transformers continues each prefix as we did: by induction, its own greedy run is the same.
        assert theirs.argmax(-1)[-NEW_TOKENS:].tolist() == running.tokens[-NEW_TOKENS:]


@pytest.mark.parametrize("variant", ["llama", "mistral-window", "qwen3"])
def test_bfloat16_stays_close_to_transformers(variant: str) -> None:
    pair = make_pair(variant, torch.bfloat16)
    exact = build_model(pair.ours.config, torch.float32)
    exact.load_weights(pair.theirs.state_dict().items())
    prompt = prompts()[2]
    (running,) = PagedDriver(pair.ours).greedy([prompt], 1, 16)
    (wide,) = PagedDriver(exact).greedy([prompt], 1, 16)
    with torch.inference_mode():
        theirs = pair.theirs(torch.tensor([prompt])).logits[0].float()
    ours, truth = torch.cat(running.logits), torch.cat(wide.logits)
    errors = {
        name: (logits - truth).square().mean().sqrt() for name, logits in (("ours", ours), ("theirs", theirs))
    }
    print(f"{variant}: root mean square error {errors}, logits {truth.std():.2f}")
    assert errors["ours"] < 1.2 * errors["theirs"]


def test_the_reference_backend_gives_the_same_tokens() -> None:
    pair = make_pair("llama")
    fast, slow = (
        PagedDriver(pair.ours, backend).greedy(prompts(), 8, 16) for backend in ("torch", "reference")
    )
    assert [r.tokens for r in fast] == [r.tokens for r in slow]


def test_only_the_rows_asked_for_get_logits_and_each_layer_attends_once() -> None:
    ours = make_pair("llama").ours
    driver = PagedDriver(ours)
    calls = []

    class Counting:
        def plan(self, metadata: AttentionMetadata) -> None:
            driver.backend.plan(metadata)

        def forward_fused(self, layer: int, *fused: object) -> torch.Tensor:
            calls.append(layer)
            return driver.backend.forward_fused(layer, *fused)

    backend = Counting()
    step = AttentionMetadata.build([0, 0], [5, 3], [np.array([4], np.int32), np.array([2], np.int32)], 8)
    backend.plan(step)
    ids = torch.arange(8)
    everything = ours.forward(ids, backend, torch.arange(8))
    chosen = ours.forward(ids, backend, torch.tensor([7, 4]))
    nothing = ours.forward(ids, backend, torch.empty(0, dtype=torch.int64))

    assert calls == [0, 1, 2] * 3
    assert everything.dtype == torch.float32
    assert nothing.shape == (0, VOCAB)
    torch.testing.assert_close(chosen, everything[[7, 4]], rtol=0, atol=1e-5)
