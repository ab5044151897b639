"""What the language costs: `run_batch` next to `Engine.generate` on the same prompts, and constrained next to free.

    python benchmarks/language.py --prompts 256 --max-tokens 16

Both run GSM8K few-shot prompts on the embedded model, on a cold cache each time, by turns; the medians are compared.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from trunkline import Engine, EngineConfig, SamplingParams, function, gen

DATA = Path(__file__).resolve().parents[1] / "examples/data/gsm8k.jsonl"


@function(temperature=0.0, ignore_eos=True)
def program(s, prompt):
    s += prompt + gen("answer")


@function(temperature=0.0)
def constrained(s, prompt, pattern):
    s += prompt + gen("answer", regex=pattern)


def prompts(count: int) -> list[str]:
    """Five worked examples, then one of a few questions with a number of its own."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    head = "".join(f"Q: {row['question']}\nA: {row['answer']}\n\n" for row in rows if row["split"] == "train")
    asked = [row["question"] for row in rows if row["split"] == "test"]
    return [f"{head}Q: ({number}) {asked[number % len(asked)]}\nA:" for number in range(count)]


def seconds(engine: Engine, work: Callable[[], object]) -> float:
    engine.flush_cache()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-cache-tokens", type=int, default=65536)
    options = parser.parse_args()
    engine = Engine(EngineConfig(kv_cache_tokens=options.kv_cache_tokens))
    asked, length = prompts(options.prompts), options.max_tokens
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    free = program.using(engine, max_tokens=length)
    bound = constrained.using(engine, max_tokens=length + 1)
    pattern = f"[ -~]{{{length * 6}}}"  # longer than the answer may get, so that each has all its tokens
    works: dict[str, Callable[[], object]] = {
        "Engine.generate": lambda: engine.generate(asked, params),
        "run_batch": lambda: free.run_batch(asked),
        "run_batch, constrained": lambda: bound.run_batch([(prompt, pattern) for prompt in asked]),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(options.rounds + 1):
        for name, work in works.items():
            elapsed = seconds(engine, work)
            if number:  # the first round warms up
                times[name].append(elapsed)
    base = statistics.median(times["Engine.generate"])
    for name, found in times.items():
        median = statistics.median(found)
        print(
            f"{name:24} {median:7.3f} s  {options.prompts / median:7.1f} prompts/s  {base / median:6.1%} of generate"
        )


if __name__ == "__main__":
    main()
