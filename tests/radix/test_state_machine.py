"""Any sequence of operations that hypothesis can think of, against the plain model, checked after each step."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.radix.driver import RANKS, Driver

NAMESPACES = st.sampled_from([("default", ""), ("salt", "a"), ("adapter", "a")])
# Runs of equal tokens make prefixes meet, inside pages too.
RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=8)
PROMPTS = RUNS.map(lambda runs: tuple(token for token, length in runs for _ in range(length)))
INDEX = st.integers(0, 100)


class CacheMachine(RuleBasedStateMachine):
    """The driver does the work and all comparisons."""

    @initialize(shape=st.sampled_from([(1, 60), (4, 30), (16, 12)]), policy=st.sampled_from(sorted(RANKS)))
    def make(self, shape: tuple[int, int], policy: str) -> None:
        self.driver = Driver(*shape, policy)

    @precondition(lambda self: len(self.driver.running) < 4)
    @rule(tokens=PROMPTS, namespace=NAMESPACES, priority=st.integers(0, 2))
    def start(self, tokens: tuple[int, ...], namespace: tuple[str, str], priority: int) -> None:
        self.driver.start(tokens, namespace, priority)

    @precondition(lambda self: self.driver.running)
    @rule(index=INDEX, count=st.integers(1, 40))
    def compute_prompt(self, index: int, count: int) -> None:
        self.driver.compute(self.driver.running[index % len(self.driver.running)], count)

    @precondition(lambda self: self.driver.running)
    @rule(index=INDEX, more=PROMPTS)
    def compute_more(self, index: int, more: tuple[int, ...]) -> None:
        self.driver.compute(self.driver.running[index % len(self.driver.running)], 100, more)

    @precondition(lambda self: self.driver.running)
    @rule(index=INDEX)
    def finish(self, index: int) -> None:
        self.driver.finish(self.driver.running[index % len(self.driver.running)])

    @rule(tokens=PROMPTS, namespace=NAMESPACES)
    def pin(self, tokens: tuple[int, ...], namespace: tuple[str, str]) -> None:
        self.driver.pin(tokens, namespace)

    @precondition(lambda self: self.driver.pins)
    @rule(index=INDEX)
    def unpin(self, index: int) -> None:
        self.driver.unpin(index % len(self.driver.pins))

    @rule(tokens=PROMPTS, namespace=NAMESPACES, start=st.integers(0, 20), ago=st.integers(0, 40))
    def retire(self, tokens: tuple[int, ...], namespace: tuple[str, str], start: int, ago: int) -> None:
        self.driver.retire(tokens, namespace, start, self.driver.cache.tick - ago)

    @precondition(lambda self: self.driver.running)
    @rule(index=INDEX, start=st.integers(0, 20))
    def finish_and_retire(self, index: int, start: int) -> None:
        request = self.driver.running[index % len(self.driver.running)]
        self.driver.finish(request)
        self.driver.retire(request.tokens, request.lease.namespace, start, 0)

    @rule(namespace=st.none() | NAMESPACES)
    def flush(self, namespace: tuple[str, str] | None) -> None:
        self.driver.flush(namespace)

    @rule()
    def listen(self) -> None:
        self.driver.listen()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            for request in list(self.driver.running):
                self.driver.finish(request)
            while self.driver.pins:
                self.driver.unpin(0)
            self.driver.flush(None)
            pool = self.driver.cache.pool
            assert pool.num_free == pool.num_pages


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
