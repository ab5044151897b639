"""An engine that says what a test tells it to, behind the interface of `AsyncEngine`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from trunkline.runtime.engine import EngineInfo, EngineStats, RequestOutput

INFO = EngineInfo(
    model_name="fake",
    max_model_len=128,
    vocab_size=49152,
    page_size=16,
    num_pages=8,
    dtype="float32",
    backend="none",
)


def output(text: str = "", index: int = 0, **changes: Any) -> RequestOutput:
    """One token's output."""
    plain = RequestOutput(
        id="fake",
        index=index,
        text=text,
        token_ids=(7,),
        finish_reason=None,
        last=False,
        stop=None,
        num_prompt_tokens=5,
        num_cached_tokens=0,
        num_output_tokens=1,
        num_preemptions=0,
    )
    return msgspec.structs.replace(plain, **changes)


class FakeStream:
    """Yields a script; an exception in it is raised, None waits until the stream is closed."""

    def __init__(self, script: Sequence[RequestOutput | Exception | None]) -> None:
        self._script = iter(script)
        self._closed = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        for step in self._script:
            if isinstance(step, Exception):
                raise step
            if step is None:
                await self._closed.wait()
                break
            return step
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._closed.set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()


class FakeEngine:
    """Answers each submitted prompt with the next of its scripts, the last one again and again."""

    def __init__(self, *scripts: Sequence[RequestOutput | Exception | None]) -> None:
        self.info = INFO
        self.alive = True
        self.streams: list[FakeStream] = []
        self.submitted: list[dict[str, Any]] = []
        self._scripts = scripts

    def submit(self, prompt: Any, params: Any, **options: Any) -> FakeStream:
        script = self._scripts[min(len(self.streams), len(self._scripts) - 1)]
        self.streams.append(FakeStream(script))
        self.submitted.append({"prompt": prompt, "params": params, **options})
        return self.streams[-1]

    def stats(self) -> EngineStats:
        return EngineStats()

    async def check(self) -> None:
        raise RuntimeError("page 3 is in two places at /secret/path.py")
