"""What a prompt may be, and how much may follow it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trunkline.radix.tokens import Int32Array
from trunkline.runtime.errors import RequestError
from trunkline.runtime.loading import Tokenizer
from trunkline.runtime.sampling import SamplingParams

__all__ = ["Prompt", "encode_prompt", "limit_output"]

Prompt = str | Sequence[int] | Int32Array


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, vocab_size: int) -> Int32Array:
    """Token ids [tokens] int32 of a prompt; text can't become control tokens, and gets BOS where the model wants it.

    Raises RequestError for an empty prompt and for ids outside the vocabulary, naming the first.
    """
    tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else _checked_ids(prompt, vocab_size)
    if len(tokens) == 0:
        raise RequestError("the prompt is empty", "prompt")
    return tokens


def _checked_ids(prompt: Sequence[int] | Int32Array, vocab_size: int) -> Int32Array:
    if not isinstance(prompt, np.ndarray):
        for index, token in enumerate(prompt):
            if type(token) is not int:
                raise RequestError(f"prompt[{index}] is {token!r}, which is no token id", "prompt")
            if not 0 <= token < vocab_size:
                raise RequestError(_outside(index, token, vocab_size), "prompt")
        return np.array(prompt, dtype=np.int32)
    if prompt.dtype.kind not in "iu" or prompt.ndim != 1:
        raise RequestError(
            f"a prompt array must be 1-D integers, not {prompt.ndim}-D {prompt.dtype}", "prompt"
        )
    outside = np.flatnonzero((prompt < 0) | (prompt >= vocab_size))
    if len(outside):
        raise RequestError(_outside(int(outside[0]), int(prompt[outside[0]]), vocab_size), "prompt")
    return prompt.astype(np.int32)


def _outside(index: int, token: int, vocab_size: int) -> str:
    return (
        f"prompt[{index}] is {token}, outside the vocabulary of {vocab_size} tokens (0 to {vocab_size - 1})"
    )


def limit_output(num_prompt_tokens: int, params: SamplingParams, max_model_len: int) -> int:
    """Tokens a request may generate: `params.max_tokens`, or all that the context leaves.

    Raises RequestError where the prompt, or prompt and output together, don't fit; both numbers are in the message.
    """
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise RequestError(
            f"the prompt has {num_prompt_tokens} tokens, but at most {max_model_len} fit with at least one token of "
            f"output",
            "prompt",
        )
    if params.max_tokens is None:
        return room
    if params.max_tokens > room:
        raise RequestError(
            f"max_tokens {params.max_tokens} and a prompt of {num_prompt_tokens} tokens are "
            f"{params.max_tokens + num_prompt_tokens} tokens together, but at most {max_model_len} fit",
            "max_tokens",
        )
    return params.max_tokens
