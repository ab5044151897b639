"""Chat templates: messages in, a prompt out in which only the template has written control tokens.

The sandbox, filters and globals are those templates are written for (transformers'). The control tokens
in the template's own literals are sealed when it is compiled (see `sealing`), so nothing in a message
can become one.

Limits: a template that spells a control token in pieces (`'<|' + role + '|>'`) is refused when that
happens, and a literal that only *examines* text (`'</think>' in content`, `content.split(…)`) is left as
it is.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from trunkline.runtime.errors import ChatTemplateError

from .sealing import Seals

Message = Mapping[str, Any]

# Methods and filters whose arguments are compared with text, or cut out of it, rather than written.
_EXAMINING = frozenset(
    {
        *("count", "find", "index", "rfind", "rindex", "get", "startswith", "endswith"),
        *("partition", "rpartition", "split", "rsplit", "replace", "removeprefix", "removesuffix"),
        *("lstrip", "rstrip", "strip", "trim"),
    }
)
_MEASURING = frozenset({"count", "length"})


class JsonText(dict[str, Any]):
    """A JSON object that templates write as it was spelled, where they write it with `tojson`.

    So the arguments of a call that a model made come back to it token by token. Raises ValueError for text that is
    no JSON object.
    """

    def __init__(self, source: str) -> None:
        value = json.loads(source)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        super().__init__(value)
        self.json_source = source


class ChatTemplate:
    """One compiled template. `names` are the variables it may use for control tokens (`bos_token`, …)."""

    def __init__(self, source: str, seals: Seals, names: Mapping[str, str | None]) -> None:
        self._source = source
        self._seals = seals
        self._variables = {key: seals.seal(name) for key, name in names.items() if name is not None}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text with every control token of the template sealed.

        `continue_final` ends the prompt inside the last message, for the model to go on with it. Raises
        ChatTemplateError with the template's own words when it refuses the messages.
        """
        if continue_final and add_generation_prompt:
            raise ChatTemplateError("continue_final and add_generation_prompt exclude each other")
        mark = secrets.token_hex(8)
        context = {
            **self._variables,
            "messages": _marked(messages, mark) if continue_final else messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        given = dict(arguments or {})
        if reserved := sorted(context.keys() & given.keys()):
            raise ChatTemplateError(f"the chat template argument {reserved[0]!r} is set by the runtime")
        try:
            text = self._compiled.render(context | given)
        except Exception as error:  # a template is a program, and fails in any way a program can
            raise ChatTemplateError(f"the chat template refused the messages: {_reason(error)}") from None
        self._refuse_pieced_tokens(text, [messages, tools, given])
        return _cut_at(text, mark) if continue_final else text

    @cached_property
    def _compiled(self) -> jinja2.Template:
        environment = _environment()
        try:
            tree = _SealLiterals(self._seals).visit(environment.parse(self._source))
            code = environment.compile(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is not valid, line {error.lineno}: {error.message}"
            ) from None
        return environment.template_class.from_code(environment, code, environment.globals)

    def _refuse_pieced_tokens(self, text: str, given: Any) -> None:
        """A control token spelled out in `text` must be somebody's content, else the template built it."""
        pieced = self._seals.names_in(text)
        if pieced:
            pieced -= self._seals.names_in("\0".join(_strings(given)))
        if pieced:
            raise ChatTemplateError(
                f"the chat template puts the control token {min(pieced)!r} together from pieces, which is not"
                " supported: its parts can't be told from the messages' text"
            )


class _SealLiterals(NodeTransformer):
    """Seals control tokens in the literals a template writes; those it only examines text with stay."""

    def __init__(self, seals: Seals) -> None:
        self._seals = seals

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.TemplateData:
        node.data = self._seals.seal(node.data)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        if isinstance(node.value, str):
            node.value = self._seals.seal(node.value)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        if isinstance(node.node, nodes.Getattr) and node.node.attr in _EXAMINING:
            node.node = self.visit(node.node)
            return node
        return self.generic_visit(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        if node.name in _MEASURING:
            return node
        if node.name in _EXAMINING and node.node is not None:
            node.node = self.visit(node.node)
            return node
        return self.generic_visit(node)


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks what to train on; here its body is simply written."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, JsonText):
        return value.json_source
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _strings(value: Any) -> list[str]:
    """Every string inside nested lists and mappings."""
    found, pending = [], [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, Mapping):
            if isinstance(item, JsonText):
                found.append(item.json_source)
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, Sequence):
            pending.extend(item)
    return found


def _marked(messages: Sequence[Message], mark: str) -> list[Message]:
    """The messages with a mark and a blank after the last one's text; the blank tells if it is trimmed."""
    if not messages:
        raise ChatTemplateError("there is no final message to continue")
    *before, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*before, {**last, "content": f"{content}{mark} "}]
    if isinstance(content, Sequence) and content and isinstance(content[-1].get("text"), str):
        part = {**content[-1], "text": f"{content[-1]['text']}{mark} "}
        return [*before, {**last, "content": [*content[:-1], part]}]
    raise ChatTemplateError("the final message has no text to continue")


def _cut_at(text: str, mark: str) -> str:
    end = text.rfind(mark)
    if end < 0:
        raise ChatTemplateError("the chat template doesn't write the final message, so it can't be continued")
    kept = text[:end]
    return kept if text.startswith(f"{mark} ", end) else kept.rstrip()
