"""What the language costs and keeps: `run_batch` next to `Engine.generate`, and answers that must have a form.

    python benchmarks/language.py --only speed --prompts 128 --rounds 7
    python benchmarks/language.py --only constrained --answers 1000

Speed: both run the same GSM8K few-shot prompts on the embedded model, each time on an empty cache, one right after the
other and by turns first; a round's ratio is of its two runs, and the median of the ratios counts. Wall time suffers
from whatever else the machine does, CPU time of the process hardly.

Constrained: answers at temperature 1 to three schemas and a regex, a quarter each, through `gen` in a batch; each is
parsed and validated by libraries that have no part in making it, and whatever fails is printed.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs

from trunkline import Engine, EngineConfig, SamplingParams, function, gen

DATA = Path(__file__).resolve().parents[1] / "examples/data/gsm8k.jsonl"


def record(**properties: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SHORT = {"type": "string", "maxLength": 12}
FORMS: dict[str, dict[str, Any] | str] = {
    "flat": record(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 150}),
    "lists": record(
        kind={"enum": ["plant", "animal", "fungus"]},
        tags={"type": "array", "items": SHORT, "minItems": 1, "maxItems": 3},
        edible={"type": "boolean"},
    ),
    "nested": record(
        id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        points={
            "type": "array",
            "items": record(
                x={"type": "integer", "minimum": -99, "maximum": 99},
                label={"anyOf": [{"type": "string", "pattern": "^[a-z]{1,8}$"}, {"type": "null"}]},
            ),
            "minItems": 1,
            "maxItems": 2,
        },
        version={"const": 2},
    ),
    "regex": r"Order [0-9]{3}-[A-Z]{2} (shipped|lost) on 20[0-9]{2}",
}


@function(temperature=0.0, ignore_eos=True)
def free(s, prompt):
    s += prompt + gen("answer")


@function(temperature=0.0)
def bound(s, prompt, pattern):
    s += prompt + gen("answer", regex=pattern)


@function(temperature=1.0, max_tokens=300)
def formed(s, form, number):
    wanted = FORMS[form]
    s += f"Entry {number} of the list, kind {form}: "
    s += gen("answer", regex=wanted) if isinstance(wanted, str) else gen("answer", json_schema=wanted)
    return s["answer"]


def prompts(count: int) -> list[str]:
    """Five worked examples, then one of a few questions with a number of its own."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    head = "".join(f"Q: {row['question']}\nA: {row['answer']}\n\n" for row in rows if row["split"] == "train")
    asked = [row["question"] for row in rows if row["split"] == "test"]
    return [f"{head}Q: ({number}) {asked[number % len(asked)]}\nA:" for number in range(count)]


def seconds(engine: Engine, work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU time of a run on an empty cache."""
    engine.flush_cache()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def speed(engine: Engine, count: int, max_tokens: int, rounds: int) -> None:
    """Prints the ratios of `run_batch`, free and constrained, to `Engine.generate`."""
    asked = prompts(count)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    program, patterned = (
        free.using(engine, max_tokens=max_tokens),
        bound.using(engine, max_tokens=max_tokens + 1),
    )
    pattern = f"[ -~]{{{max_tokens * 6}}}"  # longer than the answer may get, so that each has all its tokens

    def base() -> object:
        return engine.generate(asked, params)

    works: dict[str, Callable[[], object]] = {
        "run_batch": lambda: program.run_batch(asked),
        "run_batch, constrained": lambda: patterned.run_batch([(prompt, pattern) for prompt in asked]),
    }
    for name, work in works.items():
        seconds(engine, base), seconds(engine, work)  # warm up
        ratios = []
        for number in range(rounds):
            if number % 2:
                mine = seconds(engine, work)
                theirs = seconds(engine, base)
            else:
                theirs = seconds(engine, base)
                mine = seconds(engine, work)
            ratios.append((theirs[0] / mine[0], theirs[1] / mine[1]))
            print(f"  generate {theirs[0]:.2f} s, {name} {mine[0]:.2f} s", flush=True)
        for clock, found in zip(("wall", "CPU"), zip(*ratios, strict=True), strict=True):
            shown = " ".join(f"{ratio:.3f}" for ratio in sorted(found))
            print(
                f"{name}: {statistics.median(found):.1%} of generate's throughput by {clock} time ({shown})"
            )


def fault(form: str, answer: str) -> str | None:
    """What is wrong with an answer, as other libraries see it."""
    wanted = FORMS[form]
    if isinstance(wanted, str):
        return None if re.fullmatch(wanted, answer) else "does not match"
    try:
        jsonschema_rs.validator_for(wanted).validate(json.loads(answer))
    except ValueError as error:  # of either library
        return str(error).splitlines()[0]
    return None


def constrained(engine: Engine, count: int) -> list[str]:
    """Makes `count` answers and returns what is wrong with those that are not as they must be."""
    items = [(form, number) for number in range(-(-count // len(FORMS))) for form in FORMS][:count]
    batch = formed.using(engine).run_batch(items)
    faults = []
    for (form, number), result in zip(items, batch, strict=True):
        problem = str(result.error) if not result.ok else fault(form, result["answer"])
        if problem is not None:
            faults.append(f"{form} {number}: {problem}: {result.text()!r}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["speed", "constrained"])
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--kv-cache-tokens", type=int, default=65536)
    options = parser.parse_args()
    engine = Engine(EngineConfig(kv_cache_tokens=options.kv_cache_tokens))
    if options.only != "constrained":
        speed(engine, options.prompts, options.max_tokens, options.rounds)
    if options.only != "speed":
        begun = time.perf_counter()
        faults = constrained(engine, options.answers)
        print(*faults, sep="\n", end="\n" if faults else "")
        elapsed = time.perf_counter() - begun
        print(
            f"{options.answers} constrained answers in {elapsed:.0f} s, {len(faults)} of them not as they must be"
        )


if __name__ == "__main__":
    main()
