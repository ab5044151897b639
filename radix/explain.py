"""Why a prompt is cached as far as it is, and what is the matter with the rest."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from .ghosts import Ghosts
from .hashing import Namespace, page_hashes
from .tokens import Int32Array, page_key
from .tree import Found, RadixTree


class Reason(StrEnum):
    """What holds for a part of a prompt."""

    CACHED = "cached"
    LAST_TOKEN = "last_token"  # computed always: its logits are wanted
    PREEMPTED = "preempted"  # computed before a preemption, and lost since
    IN_FLIGHT = "in_flight"  # being computed right now by another request
    EVICTED = "evicted"
    OTHER_NAMESPACE = "other_namespace"
    DIVERGED = "diverged"  # the tree goes on with other tokens here
    NEVER_SEEN = "never_seen"


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens `start` .. `end` of the prompt have one reason.

    `detail` has, for evicted: ticks_ago, policy; for diverged: token (the first other position), siblings
    (how many ways the tree goes on there); for other_namespace: kind, value. Else it is empty.
    """

    start: int
    end: int
    reason: Reason
    detail: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A prompt cut into parts without gap or overlap."""

    parts: tuple[Part, ...]

    @property
    def num_tokens(self) -> int:
        return self.parts[-1].end if self.parts else 0

    def tokens_by_reason(self) -> dict[Reason, int]:
        """How many tokens have each reason; adds up to `num_tokens`."""
        totals: dict[Reason, int] = {}
        for part in self.parts:
            totals[part.reason] = totals.get(part.reason, 0) + part.end - part.start
        return totals


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains prompts from the tree and from what is remembered of evicted pages."""

    tree: RadixTree
    ghosts: Ghosts | None

    def explain(
        self,
        tokens: Int32Array,
        namespace: Namespace,
        tick: int,
        in_flight: Container[int],
        preempted_tokens: int,
    ) -> Explanation:
        """Partition a prompt. O(prompt), and one walk in every other namespace."""
        if not len(tokens):
            return Explanation(())
        last = len(tokens) - 1
        found = self.tree.match(namespace, tokens[:last])
        cached = found.num_pages * self.tree.page_size + found.partial_tokens
        lost = min(max(cached, preempted_tokens), last)
        parts = [Part(0, cached, Reason.CACHED), Part(cached, lost, Reason.PREEMPTED)]
        parts += self._missed(tokens, namespace, tick, in_flight, found, lost)
        parts.append(Part(last, last + 1, Reason.LAST_TOKEN))
        return Explanation(tuple(_joined(parts)))

    def _missed(
        self,
        tokens: Int32Array,
        namespace: Namespace,
        tick: int,
        in_flight: Container[int],
        found: Found,
        start: int,
    ) -> Iterator[Part]:
        """The parts between `start` and the last token, page by page, unjoined."""
        last = len(tokens) - 1
        if start == last:
            return
        size = self.tree.page_size
        hashes = page_hashes(tokens, size, namespace).tolist()
        reason, detail = self._unknown(tokens, found)
        elsewhere, where = self._elsewhere(tokens[:last], namespace)
        first = start // size * size
        for page in range(first, last, size):
            left, right = max(page, start), min(page + size, last)
            chain_hash = hashes[page // size] if page // size < len(hashes) else None
            ghost = (
                self.ghosts.get(chain_hash) if self.ghosts is not None and chain_hash is not None else None
            )
            if chain_hash is not None and chain_hash in in_flight:
                yield Part(left, right, Reason.IN_FLIGHT)
            elif ghost is not None:
                ago: dict[str, int | str] = {"ticks_ago": tick - ghost.tick, "policy": ghost.policy}
                yield Part(left, right, Reason.EVICTED, ago)
            else:
                middle = min(max(left, elsewhere), right)
                yield Part(left, middle, Reason.OTHER_NAMESPACE, where)
                yield Part(middle, right, reason, detail)

    def _unknown(self, tokens: Int32Array, found: Found) -> tuple[Reason, dict[str, int | str]]:
        """Whether the tree goes on differently where the match ends, or has nothing there."""
        node, size = found.stop, self.tree.page_size
        depth = found.num_pages * size
        cached = depth + found.partial_tokens
        if node is None or cached == 0:
            return Reason.NEVER_SEEN, {}
        siblings = 0
        if depth < node.end:
            siblings = int(cached < node.end)
        elif node.children is not None:
            prefix = page_key(tokens[depth:cached])
            behind = prefix + b"\xff" * (4 * size)
            siblings = node.children.bisect_left(behind) - node.children.bisect_left(prefix)
            siblings -= prefix in node.children
        if not siblings:
            return Reason.NEVER_SEEN, {}
        return Reason.DIVERGED, {"token": cached, "siblings": siblings}

    def _elsewhere(self, tokens: Int32Array, namespace: Namespace) -> tuple[int, dict[str, int | str]]:
        """How many tokens the best other namespace has, and which it is."""
        best, where = 0, namespace
        for other in self.tree.spaces:
            if other != namespace:
                found = self.tree.match(other, tokens)
                length = found.num_pages * self.tree.page_size + found.partial_tokens
                if length > best:
                    best, where = length, other
        return best, {"kind": where[0], "value": where[1]}


def _joined(parts: list[Part]) -> Iterator[Part]:
    """Without empty parts, and neighbours with the same reason and detail made one."""
    parts = [part for part in parts if part.start < part.end]
    start = parts[0].start
    for part, following in pairwise(parts):
        if (part.reason, part.detail) != (following.reason, following.detail):
            yield Part(start, part.end, part.reason, part.detail)
            start = following.start
    yield Part(start, parts[-1].end, parts[-1].reason, parts[-1].detail)
