"""Few-shot multiple choice: questions of several subjects, shuffled; each subject's examples are computed once."""

import json
import random
from pathlib import Path

from trunkline import Engine, EngineConfig, function, select, set_default_backend

DATA = Path(__file__).parent / "data/mmlu.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def asked(row):
    choices = "".join(f"\n{letter}. {text}" for letter, text in zip("ABCD", row["choices"], strict=True))
    return f"{row['question']}{choices}\nAnswer:"


@function
def answer(s, row):
    s += f"Multiple choice questions about {row['subject'].replace('_', ' ')}.\n\n"
    for example in ROWS:
        if example["subject"] == row["subject"] and example["split"] == "dev":
            s += f"{asked(example)} {example['answer']}\n\n"
    s += asked(row) + select("letter", [" A", " B", " C", " D"])
    return s["letter"].strip()


def main(limit=12):
    questions = [row for row in ROWS if row["split"] == "test"]
    random.Random(0).shuffle(questions)
    questions = questions[:limit]
    batch = answer.run_batch([(row,) for row in questions], progress=True)
    right = [result.value == row["answer"] for result, row in zip(batch, questions, strict=True)]
    print(f"{sum(right)} of {len(right)} right")
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
