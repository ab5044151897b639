"""The embedded model against transformers, with the same weights in float32."""

import json

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.runtime.engines import DATA, make_engine, smollm2
from tests.runtime.paged_driver import PagedDriver
from trunkline.runtime.loading.gguf_config import hf_config
from trunkline.runtime.loading.gguf_file import GGUFFile
from trunkline.runtime.loading.gguf_weights import weights
from trunkline.runtime.loading.source import resolve
from trunkline.runtime.sampling import SamplingParams


@pytest.fixture(scope="module")
def theirs() -> LlamaForCausalLM:
    file = GGUFFile(resolve(None).path)
    config = hf_config(file)
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    state = {name: tensor.float() for name, tensor in weights(file, config)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert unexpected == []
    model.tie_weights()
    return model


def questions() -> list[str]:
    lines = (DATA / "mt_bench_20.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["turns"][0] for line in lines]


@torch.inference_mode()
def test_20_real_prompts_and_64_greedy_tokens_equal_transformers(theirs: LlamaForCausalLM) -> None:
    """One forward pass of theirs over our whole sequence: where its argmax is our token at each place, its own
    greedy run would have taken the same tokens, one by one."""
    engine = make_engine(smollm2(), tokens=16384)
    prompts = [engine.chat_prompt([{"role": "user", "content": question}]) for question in questions()]
    assert len(prompts) == 20
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logprobs=0)
    for prompt, generation in zip(prompts, engine.generate(prompts, params), strict=True):
        sequence = torch.tensor([prompt + generation.token_ids[:-1]])
        logits = theirs(sequence).logits[0, len(prompt) - 1 :]
        assert generation.token_ids == logits.argmax(dim=-1).tolist()
        expected = (
            logits.log_softmax(dim=-1).gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0].numpy()
        )
        ours = np.array([entry.token.logprob for entry in generation.choices[0].logprobs or ()])
        difference = np.abs(ours - expected)
        assert difference.max() < 1e-3, f"{difference.max():.2e} at output token {difference.argmax()}"


@torch.inference_mode()
def test_logits_after_the_last_layer_agree(theirs: LlamaForCausalLM) -> None:
    loaded = smollm2()
    tokens = loaded.tokenizer.encode(" ".join(questions()))[:400]
    [run] = PagedDriver(loaded.model).greedy([tokens.tolist()], 1, budget=512)
    ours = torch.cat(run.logits)
    expected = theirs(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    difference = (ours - expected).abs()
    worst = int(difference.argmax())
    row, column = divmod(worst, difference.shape[1])
    print(f"largest difference {difference.max():.2e} at position {row}, token {column}")
    assert difference.max() < 1e-3
