"""Asking a running server: what its cache holds, and what it says about prompts that are sent to it."""

from __future__ import annotations

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import AnalyzeError, ServerError
from .progress import Listener, Silent
from .trace import TokenText, Trace
from .types import Int64Array
from .validate import Validation, predict_tokens

_TIMEOUT = 120.0
_MAX_NODES = 2000


@dataclass(frozen=True, slots=True)
class Server:
    """A Trunkline server at `url`, with an API key if it wants one."""

    url: str
    api_key: str | None = None

    def get(self, path: str) -> bytes:
        """The body of an answer. Raises ServerError."""
        return self._open(urllib.request.Request(self._address(path), headers=self._headers()))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded answer to a JSON body. Raises ServerError."""
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers()}
        answer = self._open(urllib.request.Request(self._address(path), data, headers))
        return _decoded(self.url + path, answer)

    def get_json(self, path: str) -> Any:
        """The decoded answer. Raises ServerError."""
        return _decoded(self.url + path, self.get(path))

    def _address(self, path: str) -> str:
        if not self.url.startswith(("http://", "https://")):
            raise ServerError(f"{self.url!r} is not an address such as http://127.0.0.1:8000")
        return self.url.rstrip("/") + path

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _open(self, request: urllib.request.Request) -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            said = error.read(300).decode("utf-8", "replace")
            raise ServerError(f"{request.full_url} answered {error.code}: {said}") from error
        except (OSError, ValueError) as error:
            raise ServerError(f"{request.full_url}: no answer: {getattr(error, 'reason', error)}") from error


def live_summary(server: Server) -> dict[str, Any]:
    """What a server counts and holds: its own metrics, and the nodes of its tree that are reused most."""
    metrics = _metrics(server.get("/metrics").decode("utf-8", "replace"))
    nodes = _nodes(server.get_json(f"/v1/cache/tree?max_nodes={_MAX_NODES}"))
    nodes.sort(key=lambda node: (-node.get("hits", 0) * node.get("num_tokens", 0), node.get("start", 0)))
    return {
        "schema": "trunkline.live.v1",
        "metrics": metrics,
        "num_nodes": len(nodes),
        "top_nodes": nodes[:20],
    }


def validate_live(server: Server, trace: Trace, progress: Listener | None = None) -> Validation:
    """Send the prompts one after the other, under a salt of their own, and compare what comes back.

    The salt gives the run an empty cache of its own, so nothing that is cached already disturbs it, and nothing
    of other users is flushed. Needs tokens, since they are what is sent.
    """
    text = trace.text
    if text is None:
        raise AnalyzeError(f"{trace.name}: has hashes and no text, so its prompts can't be sent to a server")
    hear = (progress or Silent()).stage("asking the server", len(trace))
    salt = "analyze-" + secrets.token_hex(8)
    model = _model(server)
    reported: Int64Array = np.zeros(len(trace), dtype=np.int64)
    for request in range(len(trace)):
        prompt = text.of(request)[: trace.num_tokens[request]].tolist()
        space = trace.namespace.of(request)
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": f"{salt}/{space}"}
        answer = server.post("/v1/completions", {"model": model, **body})
        usage = answer.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        if not isinstance(details.get("cached_tokens"), int):
            raise ServerError(f"{server.url}: its answers don't say how many tokens were cached")
        reported[request] = details["cached_tokens"]
        hear(request + 1)
    predicted = predict_tokens(*_prompts_alone(trace, text), "lru", None)
    return Validation(trace.ids, trace.num_tokens, predicted, reported, 0)


def _prompts_alone(trace: Trace, text: TokenText) -> tuple[Trace, TokenText]:
    """The same requests without their answers and clocks: one after the other."""
    parts = [text.of(request)[: trace.num_tokens[request]] for request in range(len(trace))]
    indptr = np.concatenate([[0], np.cumsum(trace.num_tokens)]).astype(np.int64)
    unknown = np.full(len(trace), np.nan)
    prompts = replace(text, tokens=np.concatenate(parts), indptr=indptr)
    return replace(trace, time=unknown, first_token_time=unknown, end_time=unknown), prompts


def _model(server: Server) -> str:
    listed = server.get_json("/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"{server.url}/v1/models lists no model") from None


def _metrics(text: str) -> dict[str, float]:
    """Values of Prometheus' text format that are Trunkline's own and no histogram's buckets."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("trunkline_") and "_bucket" not in name and "_created" not in name:
            try:
                found[name] = float(value)
            except ValueError:
                continue
    return found


def _nodes(tree: Any) -> list[dict[str, Any]]:
    """All nodes of a snapshot, whichever namespace they are in."""
    if isinstance(tree, dict) and isinstance(tree.get("tree"), dict):
        tree = tree["tree"]
    if isinstance(tree, dict) and isinstance(tree.get("namespaces"), list):
        return [
            {"namespace": f"{space['kind']}:{space['value']}", **node}
            for space in tree["namespaces"]
            for node in space["nodes"]
        ]
    if isinstance(tree, dict) and isinstance(tree.get("nodes"), list):
        return list(tree["nodes"])
    raise ServerError("/v1/cache/tree did not answer with nodes")


def _decoded(address: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ServerError(f"{address} did not answer in JSON") from error
