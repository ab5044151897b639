"""Tree of thought on the game of 24: propose steps in forks, keep the best, go on from there."""

import csv
from pathlib import Path

from trunkline import Engine, EngineConfig, function, gen, select, set_default_backend

with (Path(__file__).parent / "data/game24.csv").open(encoding="utf-8") as file:
    PUZZLES = [row["Puzzles"] for row in csv.DictReader(file)]
RULES = """Combine two of the numbers in each step until 24 is left.
Numbers: 4 4 6 8
Step: 4 + 8 = 12 (left: 4 6 12)
Step: 6 - 4 = 2 (left: 2 12)
Step: 2 * 12 = 24 (left: 24)

"""
STEP = r" [0-9]{1,3} [-+*/] [0-9]{1,3} = [0-9]{1,3} \(left: [0-9]{1,3}( [0-9]{1,3}){0,3}\)"


@function(temperature=0.8, seed=1)
def play(s, puzzle, width=3):
    s += RULES + f"Numbers: {puzzle}\n"
    best = s
    for _ in range(3):
        forks = best.fork(width)
        for number, fork in enumerate(forks):
            fork += "Step:" + gen("step", regex=STEP, max_tokens=40, seed=number) + "\n"
        judges = [fork.fork(1)[0] for fork in forks]
        for judge in judges:
            judge += "Can these reach 24?" + select("verdict", [" yes", " no"])
        hopes = [judge.meta("verdict").scores[0] - judge.meta("verdict").scores[1] for judge in judges]
        best = forks[hopes.index(max(hopes))]
    return [entry.value.strip() for entry in best.log], best.text()[len(RULES) :]


def main(limit=4):
    batch = play.run_batch(PUZZLES[:limit], progress=True)
    for result in batch:
        print(result.value[1])
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
