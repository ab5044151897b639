"""The life of a request through steps: order, chunks, answers, reuse."""

import numpy as np

from tests.scheduler.fakes import answer_of, make_house, make_request, make_tokens


def test_a_request_gets_the_tokens_that_follow_its_prompt():
    house = make_house()
    request = make_request("a", 40, 6)
    house.add(request)
    house.run()
    assert house.answers["a"] == answer_of(request.prompt, 6)
    assert house.ends["a"].finish_reason == "length"
    assert house.is_idle_and_clean()


def test_a_burst_of_equal_prompts_computes_them_once():
    house = make_house(num_pages=1024, max_num_batched_tokens=512)
    prompt = make_tokens(4000)
    house.add(*(make_request(f"r{i}", prompt, 1) for i in range(64)))
    house.run()
    assert house.runner.num_computed == 4000 + 63 * 1
    assert len({tuple(tokens) for tokens in house.answers.values()}) == 1
