"""HellaSwag's way of asking: which ending is likeliest? Three ways to score, on the same questions."""

import json
from pathlib import Path

from trunkline import Engine, EngineConfig, function, select, set_default_backend

DATA = Path(__file__).parent / "data/mmlu.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
METHODS = ("token_length_normalized", "greedy_token", "unconditional_normalized")


@function
def complete(s, row):
    s += f"Question: {row['question']}\nAnswer:"
    forks = s.fork(len(METHODS))
    for fork, method in zip(forks, METHODS, strict=True):
        fork += select("ending", [" " + choice for choice in row["choices"]], method)
    return [row["choices"].index(ending[1:]) for ending in forks["ending"]]


def main(limit=12):
    questions = [row for row in ROWS if row["split"] == "test"][:limit]
    batch = complete.run_batch([(row,) for row in questions], progress=True)
    for place, method in enumerate(METHODS):
        right = sum(
            "ABCD"[result.value[place]] == row["answer"] for result, row in zip(batch, questions, strict=True)
        )
        print(f"{method}: {right} of {len(batch)} right")
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
