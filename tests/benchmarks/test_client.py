"""What the benchmark client counts as a token."""

import asyncio
import json

import aiohttp
from aiohttp import web

from benchmarks.client import Record, Run, Target
from benchmarks.workloads import Turn, Workload

PIECES = (("", None), ("a", None), ("", None), ("b", None), ("", "length"))


async def answer(_: web.Request) -> web.Response:
    choices = [{"choices": [{"text": text, "finish_reason": reason}]} for text, reason in PIECES]
    events = [*map(json.dumps, choices), '{"choices": [], "usage": {"completion_tokens": 4}}', "[DONE]"]
    return web.Response(
        text="".join(f"data: {event}\n\n" for event in events), content_type="text/event-stream"
    )


async def records() -> list[Record]:
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0]
        async with aiohttp.ClientSession() as session:
            run = Run(Target(f"http://{host}:{port}", "stub"), session)
            return await run.measure(Workload(1, [[Turn("x", 4)]]))
    finally:
        await runner.cleanup()


def test_a_token_without_text_ends_a_gap_but_is_no_first_token() -> None:
    [record] = asyncio.run(records())
    assert record.text == "ab"
    assert len(record.times) == 3
