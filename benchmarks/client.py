"""Drives any OpenAI-compatible server with the workloads of `benchmarks/workloads.py` and prints its figures.

    trunkline serve --port 8000
    python benchmarks/client.py --url http://127.0.0.1:8000 --label mine
    # W4 wants a small cache: trunkline serve --kv-cache-tokens 4096
    python benchmarks/client.py --workloads W4

Requests are greedy and streamed, with `ignore_eos`, so that lengths are fixed. A gap between two pieces is one
inter-token latency, also where a piece has no text: that of an ending which is passed by, or of a part of a character.
Those of W5's long prompt are left out, and its time to the first token has a column of its own.
Use each seed once for each start of a server. The client shares the cores with the server: measure with nothing else
running, one server at a time. The same reason has its parser compiled (aiohttp).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.workloads import WORKLOADS, Turn, Workload, build

COLUMNS = (
    *("label", "workload", "seed", "wall_s", "output_tok_s", "total_tok_s", "ttft_p50_s", "ttft_p99_s"),
    *("itl_p50_s", "itl_p99_s", "itl_max_s", "long_ttft_s", "prompt_tokens", "cached_tokens", "errors"),
)
Prompt = str | list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Target:
    """The server to measure; `chat_only` for one without text completions."""

    url: str
    model: str
    key: str | None = None
    chat_only: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    timeout: float = 600.0


@dataclass(slots=True)
class Record:
    """What became of one request; times are seconds since the run's start."""

    role: str
    start: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    end: float = 0.0

    @property
    def good(self) -> bool:
        return self.error is None and bool(self.times)


class Run:
    """One workload against one server."""

    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._session = session
        self._started = time.perf_counter()

    async def measure(self, workload: Workload) -> list[Record]:
        """Sends a request to warm up, then the whole workload; the records in the order of its clients."""
        await self._send("Say hello.", Turn("", 4))
        self._started = time.perf_counter()
        free = asyncio.Semaphore(workload.concurrency)

        async def client(turns: Sequence[Turn]) -> list[Record]:
            async with free:
                return await self._converse(turns, workload.system)

        return list(itertools.chain(*await asyncio.gather(*map(client, workload.clients))))

    async def _converse(self, turns: Sequence[Turn], system: str | None) -> list[Record]:
        records = []
        messages = [{"role": "system", "content": system}] if system is not None else []
        for turn in turns:
            await asyncio.sleep(max(0.0, turn.delay - self._now()))
            prompt: Prompt = turn.text
            if system is not None:
                messages.append({"role": "user", "content": turn.text})
                prompt = messages
            records.append(await self._send(prompt, turn))
            messages.append({"role": "assistant", "content": records[-1].text})
        return records

    async def _send(self, prompt: Prompt, turn: Turn) -> Record:
        record = Record(turn.role, self._now())
        path, body = self._request(prompt, turn.num_output)
        try:
            async with self._session.post(self._target.url + path, json=body) as response:
                if response.status != 200:
                    raise RuntimeError(f"{response.status}: {(await response.read())[:200]!r}")
                async for line in response.content:
                    if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                        self._note(record, json.loads(line[5:]))
        except (aiohttp.ClientError, TimeoutError, RuntimeError, ValueError) as error:
            record.error = f"{type(error).__name__}: {error}"
        record.end = self._now()
        return record

    def _request(self, prompt: Prompt, num_output: int) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self._target.model,
            "max_tokens": num_output,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            **self._target.extra,
        }
        if isinstance(prompt, str) and not self._target.chat_only:
            return "/v1/completions", body | {"prompt": prompt}
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return "/v1/chat/completions", body | {"messages": messages}

    def _note(self, record: Record, event: dict[str, Any]) -> None:
        if event.get("error"):
            raise RuntimeError(str(event["error"])[:200])
        record.usage = event.get("usage") or record.usage
        for choice in event.get("choices", []):
            text = choice.get("text") or (choice.get("delta") or {}).get("content")
            # A token may have no text: an end that `ignore_eos` passes by, a part of a character.
            if text or (record.times and not choice.get("finish_reason")):
                record.times.append(self._now())
                record.text += text or ""

    def _now(self) -> float:
        return time.perf_counter() - self._started


async def run(target: Target, workload: Workload) -> dict[str, Any]:
    """The figures of one run."""
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    async with aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=target.timeout),
    ) as session:
        return summary(await Run(target, session).measure(workload))


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Figures of a run's records; seconds, and tokens a second over the whole run."""
    good = [record for record in records if record.good]
    short = [record for record in good if record.role != "long"]
    wall = max(record.end for record in records)
    num_in = sum(record.usage.get("prompt_tokens", 0) for record in good)
    num_out = sum(record.usage.get("completion_tokens") or len(record.times) for record in good)
    waits = [record.times[0] - record.start for record in short]
    gaps = [after - before for record in short for before, after in itertools.pairwise(record.times)]
    figures = {
        "requests": len(records),
        "errors": len(records) - len(good),
        "wall_s": round(wall, 3),
        "prompt_tokens": num_in,
        "cached_tokens": _cached(good),
        "output_tokens": num_out,
        "output_tok_s": round(num_out / wall, 1),
        "total_tok_s": round((num_in + num_out) / wall, 1),
        "ttft_p50_s": percentile(waits, 50),
        "ttft_p99_s": percentile(waits, 99),
        "itl_p50_s": percentile(gaps, 50),
        "itl_p99_s": percentile(gaps, 99),
        "itl_max_s": percentile(gaps, 100),
        "e2e_p50_s": percentile([record.end - record.start for record in good], 50),
        "long_ttft_s": percentile([r.times[0] - r.start for r in good if r.role == "long"], 50),
    }
    failed = next((record for record in records if not record.good), None)
    return figures if failed is None else figures | {"first_error": failed.error or "no text"}


def _cached(records: Sequence[Record]) -> int | None:
    """The sum of what the server says it had cached; None where it says nothing."""
    details = [record.usage.get("prompt_tokens_details") for record in records]
    counts = [detail.get("cached_tokens") for detail in details if detail]
    return sum(count or 0 for count in counts) if counts else None


def percentile(values: Sequence[float], rank: float) -> float | None:
    """The value at a percentile, in seconds; None of nothing."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(rank / 100 * len(ordered)))], 4) if ordered else None


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS)]
    rows += [
        ["" if result.get(name) is None else str(result[name]) for name in COLUMNS] for result in results
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="model name to send; the server's first if absent")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--label", default="trunkline")
    parser.add_argument("--workloads", default="W1,W2,W3,W5", help="W4 wants a server with a small KV cache")
    parser.add_argument("--seeds", default="1,2", help="one run each")
    parser.add_argument("--chat-only", action="store_true", help="the server has no text completions")
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON for every request body")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--out", type=Path, help="append the results to this JSON list")
    options = parser.parse_args()
    names = options.workloads.split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"no workload {unknown[0]}; known are {', '.join(WORKLOADS)}")
    model = options.model or first_model(options.url, options.key)
    target = Target(options.url, model, options.key, options.chat_only, options.extra, options.timeout)
    results = []
    for name, seed in itertools.product(names, map(int, options.seeds.split(","))):
        result = {"label": options.label, "workload": name, "seed": seed, "load_before": os.getloadavg()[0]}
        results.append(result | asyncio.run(run(target, build(name, seed))))
    if options.out is not None:
        earlier = json.loads(options.out.read_text()) if options.out.exists() else []
        options.out.write_text(json.dumps(earlier + results, indent=1))
    print(table(results))
    for result in results:
        if "first_error" in result:
            print(f"{result['workload']}, seed {result['seed']}: {result['first_error']}")


def first_model(url: str, key: str | None) -> str:
    """The first model a server lists."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with urlopen(Request(f"{url}/v1/models", headers=headers)) as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


if __name__ == "__main__":
    main()
