from typing import Any

from trunkline.runtime.engine import EngineStats, RequestOutput
from trunkline.runtime.engine.wire import Outputs, decode_from_engine, encode
from trunkline.runtime.sampling import TokenLogprobs
from trunkline.runtime.sampling.logprobs import TokenLogprob


def output(**changes: Any) -> RequestOutput:
    plain = {
        "id": "a",
        "index": 0,
        "text": "x",
        "token_ids": (7,),
        "finish_reason": None,
        "last": False,
        "stop": None,
        "num_prompt_tokens": 5,
        "num_cached_tokens": 0,
        "num_output_tokens": 1,
        "num_preemptions": 0,
    }
    return RequestOutput(**(plain | changes))


def test_outputs_arrive_as_they_were_sent():
    scored = TokenLogprobs(TokenLogprob(7, -0.5, 1), (TokenLogprob(7, -0.5, 1), TokenLogprob(8, -1.5, 2)))
    full = output(
        finish_reason="stop",
        stop=2,
        logprobs=(scored,),
        prompt_logprobs=(None, scored),
        error="none",
        explanation={"num_tokens": 5, "parts": []},
    )
    message = Outputs([output(), full], EngineStats(num_steps=3), 1.5)
    assert decode_from_engine(encode(message)) == message


def test_what_most_outputs_lack_takes_no_room():
    sent = encode(Outputs([output()], EngineStats()))
    assert not any(name in sent for name in (b"logprobs", b"error", b"explanation"))
