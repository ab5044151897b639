"""Programs on a server: a real Trunkline one, and OpenAI-compatible endpoints that misbehave."""

import asyncio
import json

import pytest

from tests.frontend.lang.endpoint import STALL, Endpoint, completion
from tests.frontend.lang.programs import nothing_left_behind
from tests.frontend.server.serving import Server
from tests.runtime.engines import make_engine
from trunkline import OpenAIBackend, TrunklineServer, assistant, function, gen, select, system, user
from trunkline.frontend.lang import BackendError, ProgramError, State, UnsupportedError
from trunkline.runtime.loading import load_model


@function(temperature=0.0, max_tokens=6)
def story(s: State, start: str) -> None:
    s += start + gen("first", ignore_eos=True, top_k=5)
    forks = s.fork(2)
    forks += lambda number: f" Way {number}:" + gen("way", min_tokens=2)
    forks.join()
    s += " Pick:" + select("pick", [" one", " two", " one"])


@function(temperature=0.0, max_tokens=6)
def conversation(s: State, question: str) -> None:
    s += system("Be brief.") + user(question) + assistant("Well," + gen("answer"))
    s += user("Sure?") + assistant(select("sure", ["yes", "no"]))


def test_server_says_and_chooses_what_the_engine_does(server: Server, tiny_folder) -> None:
    engine = make_engine(load_model(str(tiny_folder), dtype="float32", device="cpu"))
    remote = TrunklineServer(server.url, api_key="sk-lang")
    for program, argument in ((story, "Once upon a time"), (conversation, "What is 1+1?")):
        here, there = program.using(engine).run(argument), program.using(remote).run(argument)
        assert there.variables == here.variables
        assert there.text() == here.text()
    for name in ("sure",):
        assert there.meta(name).scores == pytest.approx(here.meta(name).scores, abs=1e-3)
    assert there.meta("answer").num_prompt_tokens == here.meta("answer").num_prompt_tokens


def test_select_on_a_server_computes_the_prompt_once_for_all_choices_and_not_at_all_when_warm(
    server: Server,
) -> None:
    prompt = "Of all the colours that there are, most people who were asked about it prefer this one:"
    choices = [f" colour {number}" for number in range(40)]

    @function
    def program(s: State) -> None:
        s += prompt + select("pick", choices)

    bound = program.using(TrunklineServer(server.url, api_key="sk-lang"))
    before = server.metrics()["trunkline_computed_tokens_total"]
    cold = bound.run()
    computed = server.metrics()["trunkline_computed_tokens_total"] - before
    warm = bound.run()
    meta = warm.meta("pick")
    own = meta.num_prompt_tokens - meta.num_cached_tokens
    length = (meta.num_cached_tokens + len(choices)) // len(choices)
    assert length > 15
    assert meta.num_cached_tokens == len(choices) * (
        length - 1
    )  # the last token's logits score the first of a choice
    assert own <= len(choices) * (1 + 6)
    assert computed <= length + own + len(choices) * 16  # what is shared inside of a page is not waited for
    assert warm["pick"] == cold["pick"]
    assert meta.scores == pytest.approx(cold.meta("pick").scores, abs=1e-4)


def test_batch_on_a_server_shares_prefixes_and_counts_what_was_saved(server: Server) -> None:
    remote = TrunklineServer(server.url, api_key="sk-lang", max_concurrency=4)
    head = "A long beginning that all of these prompts have in common, word by word by word. "

    @function(temperature=0.0, max_tokens=3)
    def program(s: State, number: int) -> None:
        s += head + str(number) + gen("a")

    batch = program.using(remote).run_batch(range(12))
    assert all(result.ok for result in batch)
    assert batch.stats.best_saved is None
    assert batch.stats.hit_rate > 0.5


def test_stream_from_a_server_and_dropping_it_aborts_the_request(server: Server) -> None:
    remote = TrunklineServer(server.url, api_key="sk-lang")

    @function(temperature=0.0, ignore_eos=True)
    def program(s: State, count: int) -> None:
        s += "Go" + gen("a", max_tokens=count)

    with nothing_left_behind():
        stream = program.using(remote).run_stream(5)
        assert "".join(piece.text for piece in stream) == stream.result["a"]
        dropped = program.using(remote).run_stream(1500)
        next(iter(dropped))
        del dropped
    server.wait_idle()


def test_openai_endpoint_answers_text_and_refuses_what_it_has_not_by_name(server: Server) -> None:
    remote = OpenAIBackend(f"{server.url}/v1", api_key="sk-lang")

    @function(max_tokens=3, temperature=0.0)
    def program(s: State, part) -> None:
        s += part

    assert program.using(remote).run("Hello" + gen("a", logprobs=1)).meta("a").num_output_tokens == 3
    chat = program.using(remote).run(user("Hi") + assistant(gen("a", n=2)))
    assert len(chat["a"]) == 2
    for part, name in (
        (gen("a", top_k=3), "gen option top_k"),
        ("x" + select("a", ["y"]), "select"),
        (user("Hi") + assistant("So" + gen("a")), "an assistant message with text before gen"),
    ):
        with pytest.raises(ProgramError, match=f"{name} is not supported by OpenAI-compatible") as caught:
            program.using(remote).run(part)
        assert isinstance(caught.value.__cause__, UnsupportedError)


def failing(handler, message: str, **settings):
    """Runs eight branches of which all, or one, meet `handler`'s failure."""

    @function
    def program(s: State) -> None:
        forks = s.fork(8)
        forks += lambda number: f"branch {number}" + gen("x")
        forks.join()

    async def main() -> Endpoint:
        async with Endpoint(handler) as endpoint:
            remote = OpenAIBackend(endpoint.url, "m", max_retries=0, **settings)
            with pytest.raises(ProgramError, match=message) as caught:
                await program.using(remote).arun()
            assert isinstance(caught.value.__cause__, BackendError)
            assert caught.value.position.function in ("<lambda>", "program")
            await endpoint.all_dropped.wait()
            return endpoint

    with nothing_left_behind():
        return asyncio.run(main())


def test_400_and_500_from_an_endpoint_have_their_status_and_words() -> None:
    refused = {"error": {"message": "no such thing", "type": "invalid_request_error"}}
    failing(lambda path, body: (400, refused), "gen 'x': http://.* answered 400: no such thing")
    failing(lambda path, body: (500, {"error": {"message": "oops"}}), "answered 500: oops")


def test_500_in_one_of_eight_branches_cancels_the_others_on_the_server() -> None:
    def handler(path, body):
        return (500, {}) if body["prompt"] == "branch 0" else STALL

    endpoint = failing(handler, "answered 500")
    assert endpoint.num_open == endpoint.num_dropped


def test_endpoint_that_is_down_slow_or_breaks_off_is_an_error_that_says_so() -> None:
    failing(lambda path, body: STALL, r"did not answer within 0.2 s", timeout=0.2)

    @function
    def program(s: State) -> None:
        s += "x" + gen("x")

    down = OpenAIBackend("http://127.0.0.1:9/v1", "m", max_retries=0)
    with (
        nothing_left_behind(),
        pytest.raises(ProgramError, match=r"http://127\.0\.0\.1:9/v1 can't be reached"),
    ):
        program.using(down).run()

    async def broken_off() -> None:
        choices = [{"index": 0, "text": "a", "finish_reason": None, "logprobs": None}]
        chunk = f"data: {json.dumps(completion('', choices=choices, usage=None))}\n\n".encode()
        async with Endpoint(lambda path, body: chunk) as endpoint:
            stream = program.using(OpenAIBackend(endpoint.url, "m")).astream()
            with pytest.raises(ProgramError, match="the stream ended before the answer did"):
                assert [piece.text async for piece in stream] == ["a"]

    asyncio.run(broken_off())


def test_requests_wait_for_their_turn_and_those_that_share_a_prefix_go_together() -> None:
    @function
    def program(s: State, text: str) -> None:
        s += text + gen("x")

    async def main() -> list[str]:
        async with Endpoint(lambda path, body: completion("ok")) as endpoint:
            remote = OpenAIBackend(endpoint.url, "m", max_concurrency=1)
            await program.using(remote).arun_batch(["b1", "a1", "c1", "b2", "a2", "c2"])
            assert {body["max_tokens"] for body in endpoint.bodies} == {256}
            return [body["prompt"] for body in endpoint.bodies]

    assert asyncio.run(main()) == ["a1", "a2", "b1", "b2", "c1", "c2"]
