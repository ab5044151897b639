"""Sampling the plain way: one row, everything sorted, every step of the definition written out."""

from __future__ import annotations

import numpy as np

from trunkline.runtime.sampling import SampleRow


def slow_adjusted(logits: np.ndarray, row: SampleRow) -> np.ndarray:
    """Float32 logits after bias, penalties and bans."""
    adjusted = logits.astype(np.float32).copy()
    params = row.params
    for token, bias in params.logit_bias.items():
        adjusted[token] += np.float32(-np.inf if bias == -100 else bias)
    factor = np.float32(params.repetition_penalty)
    for token in set(row.history.tolist()):
        adjusted[token] = adjusted[token] / factor if adjusted[token] > 0 else adjusted[token] * factor
    output = row.history.tolist()[row.num_prompt_tokens :]
    for token in set(output):
        penalty = params.frequency_penalty * output.count(token) + params.presence_penalty
        adjusted[token] -= np.float32(penalty)
    if row.num_output_tokens < params.min_tokens:
        for token in row.banned_until_min:
            adjusted[token] = -np.inf
    return adjusted


def slow_distribution(
    logits: np.ndarray, row: SampleRow, top_p: float | None = None, min_p: float | None = None
) -> list[tuple[int, float]]:
    """Token ids and probabilities in the order in which they are drawn from: by id if nothing ranks them."""
    params = row.params
    adjusted = slow_adjusted(logits, row).astype(np.float64)
    top_p = params.top_p if top_p is None else top_p
    min_p = params.min_p if min_p is None else min_p
    weights = np.exp((adjusted - adjusted.max()) / params.temperature)
    ranking = sorted(range(len(weights)), key=lambda token: (-adjusted[token], token))
    if 0 < params.top_k < len(weights):
        ranking = ranking[: params.top_k]
    total = sum(weights[token] for token in ranking)
    kept, reached = [], 0.0
    for token in ranking:
        if params.top_p == 1.0 or reached < top_p * total:
            kept.append(token)
        reached += weights[token]
    kept = [token for token in kept if weights[token] >= min_p]
    if params.top_p == 1.0 and not 0 < params.top_k < len(weights):
        kept.sort()
    total = sum(weights[token] for token in kept)
    return [(token, weights[token] / total) for token in kept]


def slow_draw(distribution: list[tuple[int, float]], number: float) -> int:
    """The first token whose cumulative probability exceeds the number."""
    reached = 0.0
    for token, probability in distribution:
        reached += probability
        if reached > number:
            return token
    return max(token for token, probability in distribution if probability > 0)


def acceptable_draws(logits: np.ndarray, row: SampleRow, number: float, slack: float = 1e-6) -> set[int]:
    """Every token that rounding at the borders of the filters, or of the number's place, can lead to."""
    draws = set()
    params = row.params
    for top_p in {params.top_p} if params.top_p == 1.0 else {params.top_p - slack, params.top_p + slack}:
        for min_p in (
            {params.min_p} if params.min_p == 0.0 else {params.min_p - slack, min(params.min_p + slack, 1.0)}
        ):
            distribution = slow_distribution(logits, row, top_p, min_p)
            for shift in (-slack, 0.0, slack):
                draws.add(slow_draw(distribution, min(max(number + shift, 0.0), 1.0 - 1e-12)))
    return draws


def slow_logprobs(logits: np.ndarray) -> np.ndarray:
    """Float64 log-softmax of one row."""
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
