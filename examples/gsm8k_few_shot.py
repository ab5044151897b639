"""Few-shot grade-school maths: five worked examples before each question, computed once for all of them."""

import json
import re
from pathlib import Path

from trunkline import Engine, EngineConfig, function, gen, set_default_backend

DATA = Path(__file__).parent / "data/gsm8k.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
EXAMPLES = "".join(f"Q: {row['question']}\nA: {row['answer']}\n\n" for row in ROWS if row["split"] == "train")


@function(temperature=0.0, max_tokens=160)
def solve(s, question):
    s += EXAMPLES
    s += f"Q: {question}\nA: " + gen("answer", stop="\n\n")
    numbers = re.findall(r"-?\d+", s["answer"].replace(",", ""))
    return int(numbers[-1]) if numbers else None


def main(limit=12, **options):
    questions = [row for row in ROWS if row["split"] == "test"][:limit]
    batch = solve.using(**options).run_batch([row["question"] for row in questions], progress=True)
    right = [
        result.value == int(row["answer"].split()[-1].replace(",", ""))
        for result, row in zip(batch, questions, strict=True)
    ]
    print(f"{sum(right)} of {len(right)} right")
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
