"""The partitions of prompts: what may be told of them, and recent ones for whoever asks later."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

__all__ = ["Explanations", "without_others"]


class Explanations:
    """The newest `capacity` explanations by request id, each shown to its own tenant only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[str, tuple[str | None, dict[str, Any]]] = OrderedDict()

    def put(self, id: str, tenant: str | None, explanation: dict[str, Any]) -> None:
        """Keeps an explanation; the oldest goes when there are too many."""
        self._kept[id] = (tenant, explanation)
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def get(self, id: str, tenant: str | None) -> dict[str, Any] | None:
        """The explanation of a request, if it is kept and the tenant's own."""
        owner, explanation = self._kept.get(id, (None, None))
        return explanation if owner == tenant else None


def without_others(explanation: dict[str, Any]) -> dict[str, Any]:
    """The partition as if the request's own namespace were the only one: others' prompts stay unknown."""
    parts: list[dict[str, Any]] = []
    for part in explanation["parts"]:
        if part["reason"] == "other_namespace":
            part = {"start": part["start"], "end": part["end"], "reason": "never_seen"}
        if parts and parts[-1]["reason"] == part["reason"] == "never_seen":
            parts[-1] = {**parts[-1], "end": part["end"]}
        else:
            parts.append(part)
    return {**explanation, "parts": parts}
