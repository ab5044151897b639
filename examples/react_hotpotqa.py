"""ReAct on HotpotQA: the model thinks, looks something up with a local tool, and answers."""

import json
import re
from pathlib import Path

from trunkline import Engine, EngineConfig, function, gen, set_default_backend

DATA = Path(__file__).parent / "data/hotpotqa.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
EXAMPLE = """Answer questions. Think, then act: Search[words] looks in a small encyclopedia, Finish[answer] ends.

Question: Which river flows through the capital of Austria?
Thought: I need to know the capital of Austria and its river.
Action: Search[capital of Austria]
Observation: Vienna, the capital of Austria, lies on the Danube.
Thought: So the river is the Danube.
Action: Finish[the Danube]

"""


def search(words):
    """The tool: the entry with most of the words."""
    wanted = set(re.findall(r"\w+", words.lower()))
    best = max(ROWS, key=lambda row: len(wanted & set(re.findall(r"\w+", row["question"].lower()))))
    return f"{best['question']} {best['answer']}"


@function(temperature=0.0, max_tokens=40)
def answer(s, question, max_steps=3):
    s += EXAMPLE + f"Question: {question}\n"
    for _ in range(max_steps):
        s += "Thought:" + gen("thought", stop="\n") + "\n"
        s += "Action: " + gen("action", regex=r"(Search|Finish)\[[A-Za-z0-9 ,.'-]{1,60}\]") + "\n"
        verb, argument = s["action"].rstrip("]").split("[", 1)
        if verb == "Finish":
            return argument
        s += f"Observation: {search(argument)}\n"
    return None


def main(limit=4):
    batch = answer.run_batch([row["question"] for row in ROWS[:limit]], progress=True)
    for result, row in zip(batch, ROWS, strict=False):
        print(f"{row['question']}\n  {result.value!r}, should be {row['answer']!r}")
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
