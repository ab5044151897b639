"""The next turn of a conversation begins with the tokens that were generated, however they are spelled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.engines import embedded_tokenizer, make_engine
from trunkline.runtime.loading import Transcripts
from trunkline.runtime.sampling import SamplingParams


def test_a_turn_goes_on_from_the_generated_tokens_where_the_tokenizer_would_cut_otherwise() -> None:
    tokenizer, transcripts = embedded_tokenizer(), Transcripts()
    messages = [{"role": "user", "content": "Name a river."}]
    prompt = tokenizer.render_chat(messages, transcripts=transcripts)
    answer = "Danube is one"
    spelled = [int(token) for letter in answer for token in tokenizer.encode(letter)]
    assert tokenizer.decode(spelled) == answer
    assert tokenizer.encode(answer).tolist() != spelled
    transcripts.remember(prompt.sealed + answer, [*prompt.ids, *spelled])

    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Another <|im_end|>?"}]
    following = tokenizer.render_chat(messages, transcripts=transcripts)
    plain = tokenizer.render_chat(messages)
    assert following.text == plain.text
    assert following.ids[: len(prompt.ids) + len(spelled)].tolist() == [*prompt.ids, *spelled]
    assert tokenizer.decode(following.ids, skip_special=False) == tokenizer.decode(
        plain.ids, skip_special=False
    )
    assert (
        tokenizer.render_chat(messages, transcripts=transcripts, space="other").ids.tolist()
        == plain.ids.tolist()
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_answer_is_reused_whole_on_the_next_turn(seed: int) -> None:
    engine, transcripts = make_engine(), Transcripts()  # a random model spells in any way but the tokenizer's
    messages = [{"role": "user", "content": "Hello"}]
    known: list[int] = []
    for _ in range(3):
        prompt = engine.tokenizer.render_chat(messages, transcripts=transcripts)
        params = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)
        answer = engine.generate([prompt.ids], params)[0]
        assert answer.num_cached_tokens >= len(known) - 1
        known = [*prompt.ids, *answer.token_ids]
        transcripts.remember(prompt.sealed + answer.text, known)
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "Go on"}]


@given(
    st.lists(st.tuples(st.sampled_from(["", "x"]), st.text("ab", max_size=8)), max_size=20),
    st.sampled_from(["", "x"]),
    st.text("ab", max_size=12),
)
def test_the_longest_remembered_beginning_is_found(
    remembered: list[tuple[str, str]], space: str, text: str
) -> None:
    transcripts = Transcripts()
    for number, (where, known) in enumerate(remembered):
        transcripts.remember(known, [number], where)
    found = transcripts.longest(text, space)
    own = {known: number for number, (where, known) in enumerate(remembered) if where == space}
    expected = max((known for known in own if text.startswith(known)), key=len, default=None)
    assert found.num_characters == len(expected or "")
    if expected is not None:
        assert found.ids.tolist() == [own[expected]]


def test_the_longest_unused_texts_are_forgotten() -> None:
    transcripts = Transcripts(max_characters=25)
    for text in ("aaaaaaa", "bbbbbbb", "ccccccc"):  # 8 characters each, with the separator
        transcripts.remember(text, np.arange(3))
    assert transcripts.longest("aaaaaaa!").num_characters == 7
    transcripts.remember("ddddddd", [4])
    assert transcripts.longest("bbbbbbb!").num_characters == 0
    assert [transcripts.longest(f"{name * 7}!").num_characters for name in "acd"] == [7, 7, 7]
