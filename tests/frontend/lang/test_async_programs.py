"""Programs that are `async`: they await other things between what the model says."""

import asyncio
import contextvars

import pytest

from tests.frontend.lang.programs import ToyBackend, nothing_left_behind
from tests.runtime.engines import assert_idle, make_engine
from trunkline import function, gen
from trunkline.frontend.lang import LangError, ProgramError, State


async def tool(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


@function(temperature=0.0, max_tokens=4)
async def agent(s: State, question: str) -> str:
    s += question + gen("call")
    s += " " + await tool(f"found {s['call']}") + gen("answer")
    return s["answer"]


def test_async_program_runs_in_every_way_that_another_does() -> None:
    bound = agent.using(ToyBackend())
    result = bound.run("why?")
    assert result.value == "<2>"
    assert result.text() == "why?<1> FOUND <1><2>"
    assert [one.value for one in bound.run_batch(["a", "b"])] == ["<5>", "<6>"]
    stream = bound.run_stream("c")
    assert "".join(piece.text for piece in stream) == "<7><8>"
    assert stream.result.value == "<8>"

    async def main() -> None:
        assert (await bound.arun("d")).value == "<10>"
        assert [one.value for one in await bound.arun_batch(["e"])] == ["<12>"]
        assert [piece.name async for piece in bound.astream("f")] == ["call", "call", "answer", "answer"]

    asyncio.run(main())


def test_tools_of_a_batch_wait_at_the_same_time_and_the_engine_goes_on() -> None:
    engine = make_engine()
    arrived: list[str] = []
    together = asyncio.Barrier(3)

    @function(temperature=0.0, max_tokens=4, ignore_eos=True)
    async def program(s: State, name: str) -> None:
        s += f"Question {name}" + gen("a")
        arrived.append(s["a"])
        await together.wait()
        s += "!" + gen("b")

    batch = program.using(engine).run_batch(["one", "two", "three"])
    assert [result.error for result in batch] == [None] * 3
    assert len(arrived) == 3
    assert all(result.meta("b").num_cached_tokens > result.meta("a").num_prompt_tokens for result in batch)
    assert_idle(engine)


def test_async_program_calls_another_and_has_asyncio_as_it_is() -> None:
    setting: contextvars.ContextVar[int] = contextvars.ContextVar("setting", default=0)

    @function
    async def outer(s: State) -> list[str]:
        setting.set(5)
        own = await agent(s, "x")
        apart = (await agent.arun("y")).value
        blocking = agent.run("z").value
        assert setting.get() == 5
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(tool(text)) for text in "ab"]
        return [own, apart, blocking, *(task.result() for task in tasks)]

    toy = ToyBackend()
    from trunkline import backend

    with backend(toy):
        assert outer.run().value == ["<2>", "<4>", "<6>", "A", "B"]


def test_branches_go_their_own_ways_in_tasks_of_their_own() -> None:
    @function
    async def program(s: State) -> list[str]:
        async def branch(fork: State, question: str) -> str:
            fork += question + gen("call")
            await fork.done()
            fork += await tool(fork["call"]) + gen("answer")
            await fork.done()
            return fork["answer"]

        s += "Both: "
        return await asyncio.gather(*(branch(fork, name) for fork, name in zip(s.fork(2), "ab", strict=True)))

    result = program.using(ToyBackend()).run()
    assert sorted(result.value or []) == ["<3>", "<4>"]


def test_reading_in_another_task_says_what_to_await() -> None:
    @function
    async def program(s: State) -> None:
        async def read() -> str:
            return str(s["a"])

        s += gen("a")
        await asyncio.create_task(read())

    with pytest.raises(LangError, match=r"after `await state.done\(\)`"):
        program.using(ToyBackend()).run()


def test_exception_of_an_awaited_thing_ends_the_run() -> None:
    @function
    async def program(s: State) -> None:
        s += "slow" + gen("a")
        await asyncio.sleep(0)
        raise ZeroDivisionError("mine")

    toy = ToyBackend(stuck=["slow"])
    with nothing_left_behind(), pytest.raises(ZeroDivisionError, match="mine"):
        program.using(toy).run()
    assert toy.cancelled == ["slow"]


def test_time_out_of_a_read_aborts_its_request_and_the_program_can_go_on() -> None:
    async def expire(limit: asyncio.Timeout) -> None:
        while "slow" not in toy.prompts:
            await asyncio.sleep(0)
        limit.reschedule(asyncio.get_running_loop().time())

    @function
    async def program(s: State) -> str:
        slow, quick = s.fork(2)
        slow += "slow" + gen("x") + "more" + gen("y")
        quick += "quick" + gen("x")
        try:
            async with asyncio.timeout(None) as limit:
                expiring = asyncio.create_task(expire(limit))
                return str(slow["x"])
        except TimeoutError:
            await expiring
            with pytest.raises(ProgramError, match="gen 'x': it was cancelled"):
                slow["x"]
            return "late, " + quick["x"]

    toy = ToyBackend(stuck=["slow"])
    with nothing_left_behind():
        assert program.using(toy).run().value == "late, <2>"
    assert toy.cancelled == ["slow"]


def test_cancelled_async_run_ends_what_it_awaits() -> None:
    ended: list[str] = []

    @function
    async def program(s: State) -> None:
        s += "a" + gen("a")
        _ = s["a"]
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("tool")

    async def main() -> None:
        toy = ToyBackend()
        running = asyncio.create_task(program.using(toy).arun())
        while not toy.prompts:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert toy.num_open == 0

    with nothing_left_behind():
        asyncio.run(main())
    assert ended == ["tool"]
