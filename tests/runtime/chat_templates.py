"""Small templates in the styles of the model families, and a tokenizer whose control tokens they all use."""

from pathlib import Path
from typing import Any

from tests.runtime import loading_factories as tiny
from trunkline.runtime.loading import Tokenizer, load_tokenizer

CONTROL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "<|tool>"),
]
# Found in text wherever they stand, as Qwen3's are: added to the vocabulary, but no control tokens.
PLAIN_ADDED = ["<think>", "</think>"]

CHATML = """
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- for tool in tools or [] %}
    {{- '<|tool>' + tool | tojson + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Drops the reasoning of earlier turns, and can start the answer with an empty one.
QWEN3 = """
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content and not loop.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA3 = """
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'].strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

# Content as a list of parts, written without anything between them.
PARTS = """
{%- for message in messages %}
    {{- '<|im_start|>' }}
    {%- for part in message.content %}{{ part.text }}{% endfor %}
    {{- '<|im_end|>' }}
{%- endfor %}
"""

# Cuts text out of what people wrote, and puts a name right before a ">".
CUTTING = """
{%- for message in messages %}
    {{- '<|im_start|><name=' + message.name + '>' + message.content | replace('<image>', '') + '<|im_end|>' }}
{%- endfor %}
"""

STYLES = {"chatml": CHATML, "qwen3": QWEN3, "llama3": LLAMA3, "mistral": MISTRAL}


def definition() -> dict[str, Any]:
    """A tokenizer.json with the control tokens of every style; line ends stay together, as in Llama 3."""
    names = [*CONTROL, *PLAIN_ADDED]
    document = tiny.tokenizer_json()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    document["added_tokens"] = [
        {"id": id, "content": name, "special": name in CONTROL, **flags} for id, name in enumerate(names)
    ]
    words = {"type": "Split", "pattern": {"Regex": r"\s*[\r\n]+|\p{N}| ?[^\s\p{N}]+|\s+"}}
    document["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {**words, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    tokens = [*names, *tiny.TOKENS[len(tiny.CONTROL) :]]
    document["model"]["vocab"] = {token: id for id, token in enumerate(tokens)}
    return document


def tokenizer(folder: Path, template: str | None, **settings: Any) -> Tokenizer:
    """A tokenizer with that chat template, bos "<s>" and eos "</s>"."""
    given = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template, **settings}
    tiny.write_folder(folder, tokenizer_config=given)
    tiny.write_json(folder / "tokenizer.json", definition())
    return load_tokenizer(folder)
