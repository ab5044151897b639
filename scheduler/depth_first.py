"""The policy `dfs-weight`: common prefixes of those who wait depth-first, the heaviest first."""

from collections.abc import Iterator

from sortedcontainers import SortedDict, SortedList

from .errors import InvariantError
from .state import RequestState

# After one overdue request's subtree was begun, the next overdue one has to wait this many steps.
JUMP_INTERVAL = 8


class _Node:
    """An edge of the trie: pages `start..end-1` of the prompts below, named by the chain hashes in `path`."""

    __slots__ = (
        "birth",
        "children",
        "end",
        "here",
        "is_cached",
        "parent",
        "path",
        "ranking",
        "start",
        "weight",
    )

    def __init__(
        self, parent: "_Node | None", path: tuple[int, ...], start: int, end: int, birth: int
    ) -> None:
        self.parent = parent
        self.path = path
        self.start = start
        self.end = end
        self.birth = birth
        self.weight = 0
        self.is_cached = False
        self.here: dict[int, RequestState] = {}
        self.children: dict[int, _Node] = {}
        self.ranking: SortedList | None = None

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Place among its siblings: what is cached, then what most requests wait for, then the oldest."""
        return (not self.is_cached, -self.weight, self.birth)


class DepthFirstOrder:
    """Serve the subtree of the last served request to its end, then its parent's heaviest other one.


    The tree is a trie over the page hashes of those who wait, compressed like the cache's own, so prefixes
    that nobody has computed yet are grouped as well. Weights (requests below) are kept along one path per
    change: O(depth * log children), and O(1) amortised for each candidate looked at; nothing is sorted per
    step.

    Age: when the oldest has waited `max_wait_steps`, its subtree is the next to be begun; the next overdue
    one's follows `JUMP_INTERVAL` steps later. So a request with n older ones before it is first in the
    order after max_wait_steps + JUMP_INTERVAL * (n + 1) steps at the latest. Idea: SGLang's dfs-weight.
    """

    def __init__(self, max_wait_steps: int) -> None:
        self._max_wait_steps = max_wait_steps
        self._root = _Node(None, (), 0, 0, 0)
        self._cursor = self._root
        self._arrivals: SortedDict = SortedDict()
        self._births = 0
        self._last_jump = -JUMP_INTERVAL

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, state: RequestState) -> None:
        self._arrivals[state.seq] = state
        node = self._leaf_for(state.page_hashes)
        node.here[state.seq] = state
        state.order_entry = node
        self._reweigh(node, 1)
        self.rescore(state)

    def remove(self, state: RequestState) -> None:
        del self._arrivals[state.seq]
        node = self._node_of(state)
        del node.here[state.seq]
        state.order_entry = None
        self._reweigh(node, -1)
        while node.parent is not None and node.weight == 0:
            parent = node.parent
            assert parent.ranking is not None
            parent.ranking.remove((*node.rank, node))
            del parent.children[node.path[node.start]]
            if self._cursor is node:
                self._cursor = parent
            node = parent

    def rescore(self, state: RequestState) -> None:
        node = self._node_of(state)
        while node.parent is not None:
            is_cached = state.matched_pages > node.start
            if node.is_cached != is_cached:
                self._rerank(node, is_cached, node.weight)
            node = node.parent

    def serving(self, state: RequestState, step: int) -> None:
        if self._is_overdue(step) and state is self._arrivals.peekitem(0)[1]:
            self._last_jump = step
        self._cursor = self._node_of(state)

    def candidates(self, step: int) -> Iterator[RequestState]:
        oldest: RequestState | None = None
        if self._is_overdue(step):
            oldest = self._arrivals.peekitem(0)[1]
            yield oldest
        node: _Node | None = self._cursor
        done: _Node | None = None
        while node is not None:
            for state in self._below(node, done):
                if state is not oldest:
                    yield state
            done, node = node, node.parent

    def check(self) -> None:
        """Raise `InvariantError` where a weight, a ranking or a path differs from a recount."""
        nodes, count = [self._root], 0
        while nodes:
            node = nodes.pop()
            children = list(node.children.values())
            nodes.extend(children)
            count += len(node.here)
            if node.weight != len(node.here) + sum(child.weight for child in children):
                raise InvariantError(
                    f"trie node at page {node.start} has weight {node.weight}, a recount differs"
                )
            if [entry[-1] for entry in node.ranking or ()] != sorted(children, key=lambda child: child.rank):
                raise InvariantError(f"the children of the trie node at page {node.start} are ranked wrongly")
            if any(
                state.page_hashes[node.start : node.end] != node.path[node.start : node.end]
                or len(state.page_hashes) != node.end
                for state in node.here.values()
            ):
                raise InvariantError(f"a request waits at the wrong trie node, at page {node.start}")
        if count != len(self._arrivals):
            raise InvariantError(f"{len(self._arrivals)} requests wait, the trie has {count}")

    def _is_overdue(self, step: int) -> bool:
        if not self._arrivals or step - self._last_jump < JUMP_INTERVAL:
            return False
        oldest: RequestState = self._arrivals.peekitem(0)[1]
        return step - oldest.arrival_step >= self._max_wait_steps

    def _below(self, top: _Node, done: "_Node | None") -> Iterator[RequestState]:
        """Everybody below `top` but not below its child `done`, in depth-first order."""
        yield from top.here.values()
        stack = [iter(top.ranking or ())]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
            elif entry[-1] is not done:
                node: _Node = entry[-1]
                yield from node.here.values()
                if node.ranking:
                    stack.append(iter(node.ranking))

    def _node_of(self, state: RequestState) -> _Node:
        node = state.order_entry
        assert isinstance(node, _Node)
        return node

    def _leaf_for(self, path: tuple[int, ...]) -> _Node:
        """The node at which a prompt with these page hashes waits; makes and splits nodes where needed."""
        node, depth = self._root, 0
        while depth < len(path):
            child = node.children.get(path[depth])
            if child is None:
                return self._new_child(node, path, depth, len(path))
            agree = _common_end(child.path, path, depth, min(child.end, len(path)))
            if agree < child.end:
                child = self._split(child, agree)
            node, depth = child, agree
        return node

    def _new_child(self, parent: _Node, path: tuple[int, ...], start: int, end: int) -> _Node:
        self._births += 1
        node = _Node(parent, path, start, end, self._births)
        self._attach(parent, node)
        return node

    def _attach(self, parent: _Node, node: _Node) -> None:
        node.parent = parent
        parent.children[node.path[node.start]] = node
        if parent.ranking is None:
            parent.ranking = SortedList()
        parent.ranking.add((*node.rank, node))

    def _split(self, node: _Node, at: int) -> _Node:
        """Put a new node for the pages before `at` above `node`, which keeps those behind."""
        parent = node.parent
        assert parent is not None
        assert parent.ranking is not None
        parent.ranking.remove((*node.rank, node))
        upper = _Node(parent, node.path, node.start, at, node.birth)
        upper.weight, upper.is_cached = node.weight, node.is_cached
        self._attach(parent, upper)
        node.start = at
        # All who wait below agree on what of the node's own pages is cached.
        node.is_cached = next(self._below(node, None)).matched_pages > at
        self._attach(upper, node)
        return upper

    def _reweigh(self, node: _Node, change: int) -> None:
        while node.parent is not None:
            self._rerank(node, node.is_cached, node.weight + change)
            node = node.parent
        node.weight += change

    def _rerank(self, node: _Node, is_cached: bool, weight: int) -> None:
        assert node.parent is not None
        assert node.parent.ranking is not None
        node.parent.ranking.remove((*node.rank, node))
        node.is_cached, node.weight = is_cached, weight
        node.parent.ranking.add((*node.rank, node))


def _common_end(left: tuple[int, ...], right: tuple[int, ...], start: int, end: int) -> int:
    """First index in `start..end` at which two hash chains differ; equal somewhere is equal before."""
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        if left[middle] == right[middle]:
            low = middle + 1
        else:
            high = middle
    return low
