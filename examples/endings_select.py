"""HellaSwag's way of asking: which of four endings does a sentence go on with? Three ways to score, side by side.

The sentences are MMLU's: those of its questions that are the beginning of one, with whole clauses to choose from.
"""

import json
from pathlib import Path

from trunkline import Engine, EngineConfig, function, select, set_default_backend

DATA = Path(__file__).parent / "data/endings.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
METHODS = ("token_length_normalized", "greedy_token", "unconditional_normalized")


@function
def complete(s, row):
    s += row["beginning"]
    forks = s.fork(len(METHODS))
    for fork, method in zip(forks, METHODS, strict=True):
        fork += select("ending", [" " + ending for ending in row["endings"]], method)
    return [row["endings"].index(ending[1:]) for ending in forks["ending"]]


def main(limit=24):
    rows = ROWS[:limit]
    batch = complete.run_batch([(row,) for row in rows], progress=True)
    for place, method in enumerate(METHODS):
        right = sum(result.value[place] == row["answer"] for result, row in zip(batch, rows, strict=True))
        print(f"{method}: {right} of {len(batch)} right")
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
