"""From logits to tokens: validated options, the sampler, log-probabilities."""

from .logprobs import LOGPROB_FLOOR, TokenLogprob, TokenLogprobs, prompt_logprobs
from .params import InvalidSamplingParams, SamplingParams
from .penalties import SampleRow
from .randomness import derive_seed
from .sampler import SampleOutput, Sampler

__all__ = [
    "LOGPROB_FLOOR",
    "InvalidSamplingParams",
    "SampleOutput",
    "SampleRow",
    "Sampler",
    "SamplingParams",
    "TokenLogprob",
    "TokenLogprobs",
    "derive_seed",
    "prompt_logprobs",
]
