"""The tree as plain data, for tools that draw or rank it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .hashing import Namespace
from .node import Node
from .tokens import Int32Array

if TYPE_CHECKING:
    from .tree import RadixTree

HEAD_TOKENS = 64


@dataclass(frozen=True, slots=True, eq=False)
class TopPrefix:
    """A prefix that ends with a node, and what its last node has brought.

    `tokens`: its first tokens (int32, at most HEAD_TOKENS); `num_tokens`: its whole length; `hits`: requests
    that reused the node's first page; `tokens_reused`: tokens of the node's pages times the requests that
    reused them.
    """

    namespace: Namespace
    tokens: Int32Array
    num_tokens: int
    hits: int
    tokens_reused: int


def tree_to_dict(tree: "RadixTree") -> dict[str, Any]:
    """All nodes as JSON-ready values, parents first; flat, so that depth does not matter. O(nodes).

    `head` is a node's first tokens, at most HEAD_TOKENS.
    """
    return {
        "page_size": tree.page_size,
        "num_nodes": tree.num_nodes,
        "namespaces": [
            {
                "kind": namespace[0],
                "value": namespace[1],
                "num_pages": space.num_pages,
                "max_pages": space.max_pages,
                "nodes": [_node_to_dict(tree, node) for node in space.root.subtree() if node.num_pages],
            }
            for namespace, space in tree.spaces.items()
        ],
    }


def top_prefixes(tree: "RadixTree", count: int, by: str) -> list[TopPrefix]:
    """The `count` nodes with the most "tokens" (tokens_reused) or "hits", most first. O(pages)."""
    found: list[tuple[int, int, Node]] = []
    for space in tree.spaces.values():
        for node in space.root.subtree():
            if node.num_pages:
                hits = tree.usage.hits[node.pages]
                lengths = np.full(node.num_pages, tree.page_size)
                lengths[-1] = node.num_tokens - (node.num_pages - 1) * tree.page_size
                found.append((int((hits * lengths).sum()), int(hits[0]), node))
    if by == "hits":
        found.sort(key=lambda item: (-item[1], -item[0], item[2].id))
    else:
        found.sort(key=lambda item: (-item[0], -item[1], item[2].id))
    return [
        TopPrefix(node.space.namespace, _head(node), node.end, hits, tokens)
        for tokens, hits, node in found[:count]
    ]


def _node_to_dict(tree: "RadixTree", node: Node) -> dict[str, Any]:
    pages = node.pages
    return {
        "id": node.id,
        "parent": node.parent.id if node.parent is not None and node.parent.num_pages else None,
        "start": node.start,
        "num_tokens": node.num_tokens,
        "head": node.tokens[:HEAD_TOKENS].tolist(),
        "num_pages": node.num_pages,
        "num_pages_in_use": int(np.count_nonzero(tree.pool.counts[pages] > 1)),
        "num_children": len(node.children or ()),
        "hits": int(tree.usage.hits[pages[0]]),
        "last_access": int(tree.usage.last_access[pages].max()),
    }


def _head(node: Node) -> Int32Array:
    path = []
    above: Node | None = node
    while above is not None:
        path.append(above)
        above = above.parent
    head: Int32Array = np.concatenate([part.tokens[:HEAD_TOKENS] for part in reversed(path)])
    return head[:HEAD_TOKENS]
