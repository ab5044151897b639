"""O04: ten thousand random operations against the plain model; the counters never differ from a recount."""

import random

import pytest

from tests.radix.driver import Driver

NAMESPACES = [("default", ""), ("salt", "a"), ("adapter", "a")]


def random_tokens(rng: random.Random, longest: int) -> tuple[int, ...]:
    """Few different tokens, and mostly runs of the same, so that prefixes meet."""
    return tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(rng.randint(1, longest)))


def step(driver: Driver, rng: random.Random, longest: int) -> None:
    match rng.randrange(7):
        case 0 | 1 if len(driver.running) < 5:
            driver.start(random_tokens(rng, longest), rng.choice(NAMESPACES), rng.randrange(3))
        case 2 if driver.running:
            driver.finish(rng.choice(driver.running))
        case 3 if rng.random() < 0.3:
            driver.pin(random_tokens(rng, longest), rng.choice(NAMESPACES))
        case 4 if driver.pins and rng.random() < 0.5:
            driver.unpin(rng.randrange(len(driver.pins)))
        case 5 if rng.random() < 0.1:
            driver.flush(rng.choice([None, *NAMESPACES]))
        case _ if driver.running:
            more = random_tokens(rng, 5) if rng.random() < 0.3 else ()
            driver.compute(rng.choice(driver.running), rng.randint(1, longest), more)


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "fifo", "priority", "gdsf"])
@pytest.mark.parametrize(("page_size", "num_pages", "longest"), [(1, 40, 14), (4, 24, 30), (16, 14, 70)])
def test_random_operations_agree_with_the_plain_model(
    page_size: int, num_pages: int, longest: int, policy: str
) -> None:
    rng = random.Random(f"{page_size} {policy}")
    driver = Driver(page_size, num_pages, policy)
    for number in range(700):
        if number == 200:
            driver.listen()
        step(driver, rng, longest)
    for request in list(driver.running):
        driver.finish(request)
    while driver.pins:
        driver.unpin(0)
    assert driver.cache.pool.num_in_use == 0
    driver.flush(None)
    assert driver.cache.pool.num_free == num_pages
