"""The workloads of the benchmark client, made of seeded words.

The same name and seed always give the same text, and another seed shares no prefix with it: a run with a new seed on a
warm server starts with a cold prefix cache. Nearly every word is one token in the usual vocabularies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["WORKLOADS", "Turn", "Workload", "build"]

VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community name "
    "president team minute idea body information back parent face others level office door health person art "
    "war history party result change morning reason research girl guy moment air teacher force education"
)
WORDS = VOCABULARY.split()


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what is asked, how many tokens answer it, and not before `delay` seconds after the start.

    `role` tells the requests apart whose figures are kept apart: "" or "long".
    """

    text: str
    num_output: int
    delay: float = 0.0
    role: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Clients, each of which sends its turns one after the other; `concurrency` of them run at a time.

    With `system` the turns are those of a chat, and the server's own answers are sent back with the next turn.
    """

    concurrency: int
    clients: list[list[Turn]]
    system: str | None = None


def words(rng: random.Random, count: int) -> str:
    """About `count` tokens of text."""
    return " ".join(rng.choice(WORDS) for _ in range(count))


def question(rng: random.Random, number: int) -> str:
    return f"\n\nQuestion {number}: what does the text say about {words(rng, 12)}?\nAnswer:"


def few_shot(rng: random.Random) -> Workload:
    """W1: 64 requests share a prefix of about 1,000 tokens; 16 tokens out, 16 at a time."""
    prefix = words(rng, 1000)
    return Workload(16, [[Turn(prefix + question(rng, number), 16)] for number in range(64)])


def chat(rng: random.Random) -> Workload:
    """W2: 16 users with 4 turns each behind one system prompt; 48 tokens out."""
    system = words(rng, 200)
    users = [[Turn(f"{words(rng, 30)}?", 48) for _ in range(4)] for _ in range(16)]
    return Workload(16, users, system)


def unshared(rng: random.Random) -> Workload:
    """W3: 32 prompts of about 512 tokens that share nothing; 64 tokens out, 16 at a time."""
    return Workload(16, [[Turn(words(rng, 512), 64)] for _ in range(32)])


def tree(rng: random.Random) -> Workload:
    """W4: 8 documents of about 800 tokens with 8 questions each, shuffled, all at once: for a small KV cache."""
    documents = [words(rng, 800) for _ in range(8)]
    clients = [[Turn(document + question(rng, number), 16)] for document in documents for number in range(8)]
    rng.shuffle(clients)
    return Workload(64, clients)


def interference(rng: random.Random) -> Workload:
    """W5: 8 streams of 384 tokens; after 2 s a prompt of about 6,000 tokens comes."""
    streams = [[Turn(words(rng, 64), 384)] for _ in range(8)]
    return Workload(9, [*streams, [Turn(words(rng, 6000), 16, delay=2.0, role="long")]])


def single(rng: random.Random) -> Workload:
    """S: one stream, about 64 tokens in and 256 out."""
    return Workload(1, [[Turn(words(rng, 64), 256)]])


WORKLOADS: dict[str, Callable[[random.Random], Workload]] = {
    "W1": few_shot,
    "W2": chat,
    "W3": unshared,
    "W4": tree,
    "W5": interference,
    "S": single,
}


def build(name: str, seed: int) -> Workload:
    """The workload `name` with the text of `seed`."""
    return WORKLOADS[name](random.Random(f"{name}/{seed}"))
