"""Streams: the same text as without one, one ending for each choice, and the real client on top."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.frontend.server.serving import Server, events


def stream(server: Server, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a greedy stream, which must end with [DONE]."""
    body = {"model": server.name, "max_tokens": 8, "temperature": 0, "stream": True, **fields}
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def stream_text(server: Server, **fields: Any) -> list[dict[str, Any]]:
    return stream(server, "/v1/completions", **fields)


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """What the chunks of one choice come to, chat or not."""
    parts = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(part.get("text") or part.get("delta", {}).get("content") or "" for part in parts)


def finishes(chunks: list[dict[str, Any]]) -> Counter[tuple[int, str]]:
    """Which choice ended how, and how often it was said."""
    return Counter(
        (choice["index"], choice["finish_reason"])
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"] is not None
    )


def test_a_stream_says_what_the_whole_answer_says(server: Server) -> None:
    whole = server.complete("Once", max_tokens=12, ignore_eos=True)
    chunks = stream_text(server, prompt="Once", max_tokens=12, ignore_eos=True)
    assert text_of(chunks) == whole["choices"][0]["text"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_a_chat_stream_begins_with_the_role_and_says_the_same(server: Server) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    whole = server.chat(messages, max_tokens=12)
    chunks = stream(server, "/v1/chat/completions", messages=messages, max_tokens=12)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize("with_usage", [False, True])
def test_each_choice_ends_once_and_usage_comes_last_when_asked(server: Server, with_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    texts = [
        choice["text"] for choice in server.complete("x", n=3, temperature=1, seed=3, max_tokens=6)["choices"]
    ]
    stop = texts[1][len(texts[1]) // 2 :][:3]
    fields = {"prompt": "x", "n": 3, "temperature": 1, "seed": 3, "max_tokens": 6, "stop": stop}
    whole = server.complete(**fields)
    chunks = stream_text(server, **fields, **options)
    usage = [chunk for chunk in chunks if not chunk["choices"]]
    assert finishes(chunks) == Counter(
        (choice["index"], choice["finish_reason"]) for choice in whole["choices"]
    )
    assert {index for index, _ in finishes(chunks)} == {0, 1, 2}
    for choice in whole["choices"]:
        assert text_of(chunks, choice["index"]) == choice["text"]
    if with_usage:
        assert usage == [chunks[-1]]
        assert usage[0]["usage"] == whole["usage"] | {
            "prompt_tokens_details": usage[0]["usage"]["prompt_tokens_details"]
        }
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert usage == []


def stops_of(text: str) -> Iterator[str | list[str]]:
    """Stops that lie in a text across its tokens, overlap, equal all of it, or never come."""
    yield text[3:9]
    yield [text[2:6] + "\0", text[4:8]]
    yield text
    yield text + "\0"
    yield [text[len(text) // 2 :] + "\0", "\0\0"]


def test_a_stop_string_is_never_shown_and_what_was_held_back_for_one_is(server: Server) -> None:
    text = server.complete("Tell", max_tokens=12, ignore_eos=True)["choices"][0]["text"]
    for stop in stops_of(text):
        fields = {"prompt": "Tell", "max_tokens": 12, "ignore_eos": True, "stop": stop}
        [whole] = server.complete(**fields)["choices"]
        chunks = stream_text(server, **fields)
        found = [text.index(one) for one in ([stop] if isinstance(stop, str) else stop) if one in text]
        assert whole["text"] == text[: min(found, default=len(text))]
        assert whole["finish_reason"] == ("stop" if found else "length")
        assert text_of(chunks) == whole["text"]
        assert finishes(chunks) == {(0, whole["finish_reason"]): 1}


def test_a_stop_string_can_be_kept(server: Server) -> None:
    text = server.complete("Tell", max_tokens=12, ignore_eos=True)["choices"][0]["text"]
    kept = server.complete(
        "Tell", max_tokens=12, ignore_eos=True, stop=text[3:9], include_stop_str_in_output=True
    )
    assert kept["choices"][0]["text"] == text[:9]


def test_bytes_that_are_no_character_show_once_each_streamed_or_not(server: Server) -> None:
    token = server.post("/tokenize", {"prompt": "\U0001f9ff", "pieces": True}).json()["tokens"][0]
    assert server.post("/detokenize", {"tokens": [token]}).json()["prompt"] == "\ufffd"
    fields = {"prompt": "x", "max_tokens": 4, "logit_bias": {str(token): 100}, "stop": ["never"]}
    [whole] = server.complete(**fields)["choices"]
    assert set(whole["text"]) == {"\ufffd"}
    assert text_of(stream_text(server, **fields)) == whole["text"]


def test_a_token_without_text_of_its_own_is_a_chunk_as_well(server: Server) -> None:
    first, *rest = server.post("/tokenize", {"prompt": "\U0001f9ff", "pieces": True}).json()["tokens"]
    fields: dict[str, Any] = {"max_tokens": 4, "logit_bias": {str(first): 100}}
    assert rest, "a character of several tokens"
    chunks = stream_text(server, prompt="x", **fields)
    assert [chunk["choices"][0]["text"] == "" for chunk in chunks] == [True, False, False, False, True]
    messages = [{"role": "user", "content": "x"}]
    role, *deltas = stream(server, "/v1/chat/completions", messages=messages, **fields)
    said = [chunk["choices"][0]["delta"].get("content") for chunk in deltas]
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert [not text for text in said] == [True, False, False, False, True]


def test_an_echoed_prompt_comes_first_with_its_logprobs(server: Server) -> None:
    prompt = "The quick brown fox jumps over the lazy dog, and then over another forty words or so. " * 3
    fields = {"prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 2, "ignore_eos": True}
    first, second = (server.complete(**fields) for _ in range(2))
    scores = first["choices"][0]["logprobs"]
    num_tokens = first["usage"]["prompt_tokens"] + 3
    assert first["choices"][0]["text"].startswith(prompt)
    assert [len(scores[name]) for name in scores] == [num_tokens] * 4
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    assert all(value is not None for value in scores["token_logprobs"][1:])
    assert "".join(scores["tokens"]) == first["choices"][0]["text"]
    for token, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        assert first["choices"][0]["text"][offset:].startswith(token)
    assert second["choices"][0]["text"] == first["choices"][0]["text"]
    assert second["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(
        scores["token_logprobs"][1:], abs=1e-3
    )
    chunks = stream_text(server, **fields)
    assert text_of(chunks) == first["choices"][0]["text"]
    streamed = [
        choice["logprobs"]["tokens"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]
    ]
    assert list(itertools.chain.from_iterable(streamed)) == scores["tokens"]


def test_logprobs_of_the_answer_leave_the_prompt_cached(server: Server) -> None:
    prompt = "A prompt of some length, that is asked twice, and must be found the second time. " * 4
    server.complete(prompt, logprobs=1)
    again = server.complete(prompt, logprobs=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1


def test_chat_logprobs_have_bytes_and_alternatives(server: Server) -> None:
    answer = server.chat("Hello", logprobs=True, top_logprobs=3, max_tokens=4, ignore_eos=True)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] >= entry["logprob"] - 1e-6
    spelled = b"".join(bytes(entry["bytes"]) for entry in content)
    assert spelled.decode("utf-8", "replace") == answer["choices"][0]["message"]["content"]


def test_the_openai_client_reads_everything(server: Server) -> None:
    client = server.openai()
    assert [model.id for model in client.models.list()] == [server.name]
    assert client.models.retrieve(server.name).id == server.name
    answer = client.chat.completions.create(
        model=server.name,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=5,
        temperature=0,
        logprobs=True,
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    chunks = list(
        client.chat.completions.create(
            model=server.name,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=5,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"trunkline": {"cache": True}},
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1
    completion = client.completions.create(model=server.name, prompt="x", max_tokens=3, logprobs=2, echo=True)
    assert completion.choices[0].logprobs is not None


def test_the_openai_client_raises_its_own_errors(server: Server) -> None:
    client = server.openai()
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=server.name, prompt="x", temperature=3)
    assert (refused.value.param, refused.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_requests_with_one_id_do_not_meet(server: Server) -> None:
    headers = {"X-Request-Id": "the same"}
    alone = [server.complete(prompt, max_tokens=20, ignore_eos=True)["choices"] for prompt in ("one", "two")]

    def ask(prompt: str) -> tuple[str, Any]:
        body = {
            "model": server.name,
            "prompt": prompt,
            "max_tokens": 20,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = server.post("/v1/completions", body, headers=headers).json()
        return answer["id"], answer["choices"]

    with ThreadPoolExecutor(2) as pool:
        (one_id, one), (other_id, other) = pool.map(ask, ("one", "two"))
    assert one_id != other_id
    assert [one, other] == alone
