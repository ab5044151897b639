"""The installed wheel, away from the checkout given as argument: imports, an answer, a prefix hit."""

import sys
from pathlib import Path

import trunkline
from trunkline import Engine, EngineConfig, SamplingParams

checkout = Path(sys.argv[1]).resolve()
assert checkout not in Path(trunkline.__file__).resolve().parents, f"{trunkline.__file__} is the checkout"

engine = Engine(EngineConfig(kv_cache_tokens=2048))
params = SamplingParams(max_tokens=8, temperature=0.0)
prompt = "A list of the largest cities of Europe, one a line, with the country behind each name:"
first, second = (engine.generate([prompt], params)[0] for _ in range(2))
assert first.text == second.text, (first.text, second.text)
assert first.num_cached_tokens == 0
assert second.num_cached_tokens == second.num_prompt_tokens - 1, second.num_cached_tokens
print(
    f"trunkline {trunkline.__version__}: {second.num_cached_tokens} of {second.num_prompt_tokens} tokens reused"
)
