"""Chat templates: the same prompts as transformers, and errors in the template's own words."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import chat_templates as styles
from trunkline.runtime.errors import ChatTemplateError, RequestError
from trunkline.runtime.loading import JsonText, Tokenizer, load_tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "smollm2_tokens.json").read_text())
USER = [{"role": "user", "content": "hello world"}]
CHATS: list[list[dict[str, Any]]] = [
    USER,
    [{"role": "user", "content": "  \n\nŘekni 123 \n"}],
    [
        {"role": "user", "content": "\n\nhello"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello there 🙂 "},
        {"role": "user", "content": "```c\nint i = 0;\n```\n"},
    ],
    [
        {"role": "user", "content": "객"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "<b>not control</b> <|im_ [inst] 12 123"},
        {"role": "assistant", "content": " yes"},
    ],
]


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return load_tokenizer()


def transformers_reference(template: str) -> Any:
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    backend = Backend.from_str(json.dumps(styles.definition()))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=template, bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("case", GOLDEN["chats"])
def test_the_embedded_template_makes_the_reference_s_prompts(smollm: Tokenizer, case: dict[str, Any]) -> None:
    prompt = smollm.render_chat(case["messages"], add_generation_prompt=case["add_generation_prompt"])

    assert prompt.ids.dtype == "int32"
    assert prompt.ids.tolist() == case["ids"]
    assert smollm.decode(prompt.ids, skip_special=False) == prompt.text


@pytest.mark.parametrize("style", styles.STYLES)
def test_every_style_makes_the_ids_transformers_makes(tmp_path: Path, style: str) -> None:
    template = styles.STYLES[style]
    ours, theirs = styles.tokenizer(tmp_path / "m", template), transformers_reference(template)

    for messages in CHATS:
        for add in (True, False):
            prompt = ours.render_chat(messages, add_generation_prompt=add)
            expected = theirs.apply_chat_template(messages, add_generation_prompt=add, return_dict=False)
            assert prompt.ids.tolist() == expected
            text = theirs.apply_chat_template(messages, add_generation_prompt=add, tokenize=False)
            assert prompt.text == text


@pytest.mark.parametrize("style", styles.STYLES)
@pytest.mark.parametrize("content", ["So the", "So the  ", "", "ends\n\n"])
def test_the_last_message_is_left_open_as_transformers_leaves_it(
    tmp_path: Path, style: str, content: str
) -> None:
    template = styles.STYLES[style]
    messages = [*USER, {"role": "assistant", "content": content}]

    prompt = styles.tokenizer(tmp_path / "m", template).render_chat(
        messages, add_generation_prompt=False, continue_final=True
    )

    expected = transformers_reference(template).apply_chat_template(
        messages, continue_final_message=True, return_dict=False
    )
    assert prompt.ids.tolist() == expected


def test_tools_tool_calls_and_tool_results_are_written(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add", "description": "Ein Ü & <b>"}}]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "ü<|x|>"}}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "[3]"},
    ]

    prompt = styles.tokenizer(tmp_path / "m", styles.CHATML).render_chat(messages, tools=tools)

    theirs = transformers_reference(styles.CHATML)
    expected = theirs.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False
    )
    assert prompt.ids.tolist() == expected
    assert '"arguments": {"a": 1, "b": "ü<|x|>"}' in prompt.text


def test_arguments_reach_the_template(tmp_path: Path) -> None:
    tokenizer = styles.tokenizer(tmp_path / "m", styles.QWEN3)

    prompt = tokenizer.render_chat(USER, template_arguments={"enable_thinking": False})

    assert prompt.text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(ChatTemplateError, match="argument 'messages' is set by the runtime"):
        tokenizer.render_chat(USER, template_arguments={"messages": []})


@pytest.mark.parametrize("style", ["chatml", "llama3"])
def test_each_turn_s_prompt_continues_the_one_before_and_its_answer(tmp_path: Path, style: str) -> None:
    tokenizer = styles.tokenizer(tmp_path / "m", styles.STYLES[style])
    end = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>"}[style]
    messages: list[dict[str, str]] = []
    known: list[int] = []

    for question, answer in [("hello 12", "world"), ("\n\nand?", "123 hello"), ("客 🙂", "ok"), ("bye", ".")]:
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.render_chat(messages).ids.tolist()
        assert prompt[: len(known)] == known
        known = [*prompt, *tokenizer.encode(answer, add_bos=False).tolist(), tokenizer.token_to_id(end)]
        messages.append({"role": "assistant", "content": answer})


def test_four_turns_with_the_embedded_model_share_all_they_can(smollm: Tokenizer) -> None:
    messages: list[dict[str, str]] = []
    known: list[int] = []

    for turn in range(4):
        messages.append({"role": "user", "content": f"Question {turn}: what is {turn} + 12?"})
        prompt = smollm.render_chat(messages).ids.tolist()
        assert prompt[: len(known)] == known
        answer = f"The answer is {turn + 12}.\n\nAnything else?"
        known = [*prompt, *smollm.encode(answer).tolist(), 2]
        messages.append({"role": "assistant", "content": answer})


@pytest.mark.parametrize("add_bos", [False, True], ids=["model adds none", "model adds one"])
@pytest.mark.parametrize("template", [styles.LLAMA3, styles.CHATML], ids=["template writes it", "it doesn't"])
def test_a_prompt_has_one_bos_if_anybody_wants_one(tmp_path: Path, add_bos: bool, template: str) -> None:
    tokenizer = styles.tokenizer(tmp_path / "m", template, add_bos_token=add_bos)

    ids = tokenizer.render_chat([{"role": "user", "content": "<s>"}]).ids.tolist()

    wanted = add_bos or template is styles.LLAMA3
    assert ids.count(tokenizer.bos_token_id) == wanted
    assert (ids[0] == tokenizer.bos_token_id) == wanted


def test_an_added_token_that_is_no_control_token_is_found_in_content(tmp_path: Path) -> None:
    tokenizer = styles.tokenizer(tmp_path / "m", styles.CHATML)

    ids = tokenizer.render_chat([*USER, {"role": "assistant", "content": "<think>a</think>b"}]).ids.tolist()

    assert [ids.count(tokenizer.token_to_id(name)) for name in styles.PLAIN_ADDED] == [1, 1]


def test_the_usual_extensions_are_there(tmp_path: Path) -> None:
    template = (
        "{% generation %}{{ messages[0].content }}{% endgeneration %}"
        "{% for n in range(9) %}{% if n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}"
        "{{ strftime_now('%%') }}{{ {'b': 'ü<'} | tojson(indent=1) }}"
    )

    text = styles.tokenizer(tmp_path / "m", template).render_chat(USER).text

    assert text == 'hello world012%{\n "b": "ü<"\n}'


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (styles.MISTRAL, [{"role": "assistant", "content": "x"}], "Conversation roles must alternate"),
        (styles.CHATML, [{"content": "x"}], "has no attribute 'role'"),
        (styles.MISTRAL, [{"role": "user"}], "has no attribute 'content'"),
        (styles.MISTRAL, [{"role": "user", "content": None}], "'None' has no attribute 'strip'"),
        ("{{ messages[7].content }}", USER, "list object has no element 7"),
        ("{{ 1 / 0 }}", USER, "division by zero"),
        ("{{ range(10**9) | list }}", USER, "Range too big"),
        ("{{ ''.__class__.__mro__ }}", USER, "unsafe"),
        ("{{ messages.append(1) }}", USER, "unsafe"),
        ("{% for %}", USER, "not valid, line 1"),
        ("{{ messages | sing }}", USER, "not valid, line 1: No filter named 'sing'"),
        ("{{ '<|' + messages[0].role + '|>' }}", [{"role": "im_end"}], "'<|im_end|>' together from pieces"),
    ],
)
def test_a_template_that_fails_says_why_in_one_line(
    tmp_path: Path, template: str, messages: list[dict[str, Any]], says: str
) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        styles.tokenizer(tmp_path / "m", template).render_chat(messages)

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    tokenizer = styles.tokenizer(tmp_path / "m", None)

    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateError, match="the model has no chat template"):
        tokenizer.render_chat(USER)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "no final message"),
        ([{"role": "assistant", "content": None}], "no text to continue"),
        ([{"role": "assistant", "content": []}], "no text to continue"),
    ],
)
def test_only_a_message_with_text_can_be_continued(
    tmp_path: Path, messages: list[dict[str, Any]], says: str
) -> None:
    tokenizer = styles.tokenizer(tmp_path / "m", styles.CHATML)

    with pytest.raises(ChatTemplateError, match=says):
        tokenizer.render_chat(messages, add_generation_prompt=False, continue_final=True)


def test_a_message_can_be_continued_or_answered_but_not_both(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="exclude each other"):
        styles.tokenizer(tmp_path / "m", styles.CHATML).render_chat(USER, continue_final=True)


def test_a_message_the_template_never_writes_cannot_be_continued(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="doesn't write the final message"):
        styles.tokenizer(tmp_path / "m", "nothing").render_chat(
            USER, add_generation_prompt=False, continue_final=True
        )


def test_the_last_part_of_a_message_in_parts_can_be_continued(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    prompt = styles.tokenizer(tmp_path / "m", styles.PARTS).render_chat(
        [{"role": "assistant", "content": parts}], add_generation_prompt=False, continue_final=True
    )

    assert prompt.text == "<|im_start|>ab"


def test_a_lone_surrogate_in_a_message_is_refused(smollm: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D83D"):
        smollm.render_chat([{"role": "user", "content": "\ud83d"}])


def test_arguments_are_written_as_they_were_spelled(tmp_path: Path) -> None:
    source = '{"b":1e2,  "a": "\\u0041<|im_end|>", "b": 2}'
    call = {"type": "function", "function": {"name": "f", "arguments": JsonText(source)}}
    tokenizer = styles.tokenizer(tmp_path, styles.CHATML)
    prompt = tokenizer.render_chat([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert f'"arguments": {source}}}' in prompt.text
    own = tokenizer.token_to_id("<|im_end|>")
    assert prompt.ids.tolist().count(own) == 2  # that of the system message, and its own
    for wrong in ("[1]", "{", "5"):
        with pytest.raises(ValueError, match=r"."):
            JsonText(wrong)
