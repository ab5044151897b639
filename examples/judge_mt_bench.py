"""A judge of two-turn conversations: the model answers both turns, then forks of the state judge it by criteria."""

import json
from pathlib import Path

from trunkline import (
    Engine,
    EngineConfig,
    assistant,
    function,
    gen,
    select,
    set_default_backend,
    system,
    user,
)

DATA = Path(__file__).parent / "data/mt_bench.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
CRITERIA = ("correct", "clear", "short")


@function(temperature=0.0, max_tokens=64)
def judge(s, turns):
    s += system("You are a helpful assistant.")
    for number, turn in enumerate(turns):
        s += user(turn) + assistant(gen(f"answer {number + 1}"))
    forks = s.fork(len(CRITERIA))
    for fork, criterion in zip(forks, CRITERIA, strict=True):
        fork += user(f"Were your answers {criterion}? Give a grade from 1 to 5.")
        fork += assistant("Grade: " + select("grade", ["1", "2", "3", "4", "5"]))
    forks.join()
    return dict(zip(CRITERIA, map(int, s["grade"]), strict=True))


def main(limit=4):
    batch = judge.run_batch([(row["turns"],) for row in ROWS[:limit]], progress=True)
    for result in batch:
        print(result.value, result["answer 2"][:80].replace("\n", " "))
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
