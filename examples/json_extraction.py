"""JSON extraction: whatever the model, the answer is valid for the schema."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from trunkline import Engine, EngineConfig, assistant, function, gen, set_default_backend, system, user

DATA = Path(__file__).parent / "data/gsm8k.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


class Story(BaseModel):
    model_config = ConfigDict(extra="forbid")  # else the model may go on with fields of its own
    person: Annotated[str, Field(max_length=20)]
    numbers: Annotated[list[Annotated[int, Field(ge=0, le=99999)]], Field(min_length=1, max_length=4)]
    about_money: bool


@function(temperature=0.0, max_tokens=120)
def extract(s, text):
    s += system("You read a story and answer with JSON: person, numbers, about_money.")
    s += user(text) + assistant(gen("json", json_schema=Story))
    return Story.model_validate_json(s["json"])


def main(limit=6):
    batch = extract.run_batch([row["question"] for row in ROWS[:limit]], progress=True)
    for result in batch:
        print(result.value)
    return batch


if __name__ == "__main__":
    set_default_backend(Engine(EngineConfig(kv_cache_tokens=16384)))
    main()
