"""Causal attention over one request's whole history, in numpy and float64: no pages, no batches."""

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


def dense_attention(
    q: Float64Array,
    keys: Float64Array,
    values: Float64Array,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    mask: npt.NDArray[np.bool_] | None = None,
) -> Float64Array:
    """q and the result are [new, heads, dim], the last positions of keys and values [all, kv_heads, dim].

    mask [new, all] says what each query sees of the keys up to itself.
    """
    out = np.empty_like(q)
    group = q.shape[1] // keys.shape[1]
    for i in range(len(q)):
        end = len(keys) - len(q) + i + 1
        begin = 0 if window is None else max(0, end - window)
        for head in range(q.shape[1]):
            seen = np.arange(begin, end)
            if mask is not None:
                seen = seen[mask[i, seen]]
            logits = keys[seen, head // group] @ q[i, head] * scale
            if soft_cap is not None:
                logits = soft_cap * np.tanh(logits / soft_cap)
            weights = np.exp(logits - logits.max())
            out[i, head] = weights @ values[seen, head // group] / weights.sum()
    return out
