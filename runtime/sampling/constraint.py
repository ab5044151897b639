"""What the text of an answer must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trunkline.runtime.errors import RequestError

__all__ = ["Constraint", "json_rule", "laid_out"]

Kind = Literal["regex", "choices", "json_schema", "ebnf"]
MAX_SOURCE = 1 << 20
# As json.dumps writes it: a model that likes blanks could fill its whole answer with them otherwise.
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the answer is a text of; made by the class methods, one a kind.

    The model's own end of sequence is only possible where the text is complete, and follows at once where nothing
    else can. An answer that `max_tokens` or a stop string cuts may be incomplete. Raises RequestError for a source
    above 1 MiB or of an unknown kind; whether it is a grammar shows when a request is added.
    """

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise RequestError(
                f"constraint: kind {self.kind!r} is none of {', '.join(get_args(Kind))}", "constraint"
            )
        if not isinstance(self.source, str) or not self.source:
            raise RequestError(
                f"{self.kind} must be text that is not empty, not {self.source!r:.80}", "constraint"
            )
        if len(self.source) > MAX_SOURCE:
            raise RequestError(
                f"{self.kind} has {len(self.source)} characters, at most {MAX_SOURCE} are allowed",
                "constraint",
            )

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """The whole answer matches `pattern` (the syntax of Rust's regex crate: no look-around, no references)."""
        return cls("regex", pattern)

    @classmethod
    def choices(cls, choices: Sequence[str]) -> Constraint:
        """The answer is one of `choices`."""
        texts = list(choices) if not isinstance(choices, str) else []
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise RequestError(
                f"choices must be a list of strings that are not empty, not {choices!r:.80}", "constraint"
            )
        return cls("choices", json.dumps(texts, ensure_ascii=False))

    @classmethod
    def json_schema(cls, schema: Any) -> Constraint:
        """The answer is JSON that a schema accepts: a mapping, JSON text, True for any object, or a pydantic model.

        It is laid out as `json.dumps` does it: one blank after each colon and comma, none elsewhere.
        """
        if schema is True:
            schema = {"type": "object"}
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError as error:
                raise RequestError(f"json_schema is no JSON: {error}", "constraint") from None
        if not isinstance(schema, Mapping):
            raise RequestError(f"json_schema must be a JSON object, not {schema!r:.80}", "constraint")
        return cls("json_schema", json.dumps(schema, ensure_ascii=False))

    @classmethod
    def ebnf(cls, grammar: str) -> Constraint:
        """The answer is derived from `start` of a grammar in Lark's form of EBNF."""
        return cls("ebnf", grammar)


def json_rule(schema: Mapping[str, Any]) -> str:
    """The right side of a rule of `Constraint.ebnf`: JSON that `schema` accepts, laid out as by `json_schema`."""
    return f"%json {laid_out(schema)}"


def laid_out(schema: Mapping[str, Any]) -> str:
    """A schema as llguidance reads it, which says how the JSON is laid out."""
    return json.dumps({**schema, "x-guidance": JSON_LAYOUT})
