"""The engine in a process of its own: streams, aborts, refusals, and its death."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.frontend.server.tiny_folder import write_tiny_folder
from tests.runtime.engines import GREEDY, random_prompt
from trunkline.runtime.engine import EngineConfig
from trunkline.runtime.engine.async_engine import AsyncEngine, RequestStream
from trunkline.runtime.errors import EngineDeadError, EngineStartError, RequestError
from trunkline.runtime.sampling import SamplingParams
from trunkline.scheduler import SchedulerConfig

LONG = SamplingParams(temperature=0.0, max_tokens=800, ignore_eos=True)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return EngineConfig(
        model=str(write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")),
        dtype="float32",
        device="cpu",
        kv_cache_tokens=1024,
        scheduler=SchedulerConfig(max_num_batched_tokens=64),
    )


def ids(length: int, seed: int) -> np.ndarray:
    return np.array(random_prompt(length, seed), dtype=np.int32)


async def collect(stream: RequestStream) -> list[int]:
    return [token async for output in stream for token in output.token_ids]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 240))


async def until_idle(engine: AsyncEngine) -> None:
    """A call is answered after everything sent before it, so the statistics behind it are of now."""
    await engine.check()
    assert engine.num_streams == 0
    assert (engine.stats().num_running, engine.stats().num_waiting, engine.stats().num_pages_in_use) == (
        0,
        0,
        0,
    )


def test_requests_stream_are_refused_and_aborted_and_the_cache_is_seen(config: EngineConfig) -> None:
    async def scenario() -> None:
        engine = await AsyncEngine.start(config)
        try:
            prompt = ids(40, seed=1)
            first = await collect(engine.submit(prompt, GREEDY))
            again = engine.submit(prompt, GREEDY, explain=True)
            outputs = [output async for output in again]
            assert [token for output in outputs for token in output.token_ids] == first
            assert outputs[0].num_cached_tokens == 39
            assert outputs[0].explanation == {
                "num_tokens": 40,
                "parts": [
                    {"start": 0, "end": 39, "reason": "cached"},
                    {"start": 39, "end": 40, "reason": "last_token"},
                ],
            }
            await until_idle(engine)

            with pytest.raises(RequestError, match="prompt") as caught:
                await collect(engine.submit(ids(1100, seed=2), GREEDY))
            assert caught.value.param == "prompt"

            async with engine.submit(ids(30, seed=3), LONG) as stream:
                await anext(stream)
                assert engine.stats().num_running == 1
                assert await engine.abort("no such id") is False
            await until_idle(engine)

            many = [engine.submit(ids(20, seed=number), GREEDY) for number in range(20)]
            assert [len(tokens) for tokens in await asyncio.gather(*map(collect, many))] == [12] * 20
            tree = await engine.cache_tree()
            assert tree["stats"]["num_hit_tokens"] >= 39
            assert await engine.flush_cache() > 0
            assert engine.info.num_pages == 64
            assert await engine.drain(5.0) is True
        finally:
            await engine.stop()
        assert not engine.alive
        await engine.stop()

    run(scenario())


def test_streams_of_an_engine_whose_steps_overlap_are_those_of_one_in_turn(config: EngineConfig) -> None:
    async def answers(overlap: bool) -> list[list[int]]:
        engine = await AsyncEngine.start(replace(config, overlap=overlap))
        try:
            doomed = engine.submit(ids(30, seed=3), LONG)
            await anext(doomed)
            streams = [engine.submit(ids(20 + number, seed=number), GREEDY) for number in range(12)]
            found = list(await asyncio.gather(*map(collect, streams)))
            await doomed.aclose()
            while engine.stats().num_pages_in_use:  # the step in flight still writes the aborted one's
                await engine.check()
            await until_idle(engine)
            return found
        finally:
            await engine.stop()

    async def scenario() -> None:
        assert await answers(True) == await answers(False)

    run(scenario())


def test_a_slow_reader_finds_the_rest_merged(config: EngineConfig) -> None:
    async def scenario() -> None:
        engine = await AsyncEngine.start(config)
        try:
            whole = [output async for output in engine.submit(ids(20, seed=1), GREEDY)]
            slow = engine.submit(ids(20, seed=1), GREEDY)
            while slow.id in engine.running_ids:  # not one output is fetched meanwhile
                await engine.check()
            merged = [output async for output in slow]
            assert len(merged) == 1
            assert merged[0].text == "".join(output.text for output in whole)
            assert len(merged[0].token_ids) == 12
            assert merged[0].finish_reason == "length"
        finally:
            await engine.stop()

    run(scenario())


def test_a_killed_engine_fails_its_requests_and_says_so(config: EngineConfig) -> None:
    async def scenario() -> None:
        engine = await AsyncEngine.start(config)
        try:
            stream = engine.submit(ids(30, seed=1), LONG)
            await anext(stream)
            os.kill(engine.pid, signal.SIGKILL)
            assert await engine.wait_dead() == -signal.SIGKILL
            with pytest.raises(EngineDeadError, match="exit code -9"):
                await collect(stream)
            with pytest.raises(EngineDeadError):
                engine.submit(ids(30, seed=1), GREEDY)
            with pytest.raises(EngineDeadError):
                await engine.check()
            assert not engine.alive
        finally:
            await engine.stop()

    run(scenario())


def test_an_engine_that_cannot_start_says_why_in_one_line(config: EngineConfig) -> None:
    async def scenario() -> None:
        with pytest.raises(EngineStartError, match="no such model folder") as caught:
            await AsyncEngine.start(EngineConfig(model="./nowhere.gguf"))
        assert "\n" not in str(caught.value)
        with pytest.raises(EngineStartError, match="max_model_len 4096"):
            await AsyncEngine.start(replace(config, max_model_len=4096))

    run(scenario())
