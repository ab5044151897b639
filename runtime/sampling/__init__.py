"""From logits to tokens: validated options, the sampler, log-probabilities."""

from .constraint import Constraint, json_rule
from .grammar import Grammars, Mask, Waiting, reason_against
from .logprobs import LOGPROB_FLOOR, TokenLogprob, TokenLogprobs, prompt_logprobs
from .params import InvalidSamplingParams, SamplingParams
from .penalties import SampleRow
from .randomness import derive_seed
from .sampler import SampleOutput, Sampler, Sampling

__all__ = [
    "LOGPROB_FLOOR",
    "Constraint",
    "Grammars",
    "InvalidSamplingParams",
    "Mask",
    "SampleOutput",
    "SampleRow",
    "Sampler",
    "Sampling",
    "SamplingParams",
    "TokenLogprob",
    "TokenLogprobs",
    "Waiting",
    "derive_seed",
    "json_rule",
    "prompt_logprobs",
    "reason_against",
]
