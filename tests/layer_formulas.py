# SPDX-License-Identifier: MIT
# The layers' formulas in float64, one whole matrix after another, and random weights.
# Used by test_layers_*.py; the tolerance is check.py's.
# It never calls fastattn.
"""What the layers compute, written down as in their papers."""

from __future__ import annotations

import math

import numpy as np
from check import SCORE_ERROR, accumulator, assert_close, draw


def wide(x):
    return None if x is None else np.asarray(x).astype(np.float64)


def near(actual, wanted, context="", rounds=32):
    """Close, with `rounds` roundings of numbers of about 1 on the way."""
    unit = SCORE_ERROR[accumulator(actual.dtype).name]
    assert_close(actual, np.asarray(wanted, np.float64), slack=rounds * unit, context=context)


def uniform(rng, shape, dtype, size=1.0):
    """A weight of a size that trained ones have."""
    return draw(rng, shape, dtype, size=size / math.sqrt(shape[0]))


def attend(scores, value, allowed=True):
    """Softmax over what is allowed, zeros where that is nothing; context and weights."""
    allowed = np.broadcast_to(allowed, scores.shape)
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-1e300)
    e = np.where(allowed, np.exp(scores - top), 0)
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    # 0 * NaN: what no row sees does not count
    return weights @ np.where(np.isfinite(value), value, 0), weights


def multi_head(given, query, key, value, allowed=True, bias=0.0):
    """(..., queries, dim) by the weights of MultiHeadAttention; result and weights."""
    n_heads = given["num_heads"]
    n_kv_heads = given.get("num_kv_heads") or n_heads

    def projected(x, name, n):
        with np.errstate(invalid="ignore"):  # of hidden infinities
            y = wide(x) @ wide(given[f"{name}_weight"])
        if given.get(f"{name}_bias") is not None:
            y = y + wide(given[f"{name}_bias"])
        y = y.reshape(*y.shape[:-1], n, -1).swapaxes(-2, -3)
        return np.repeat(y, n_heads // n, axis=-3)

    q, k = projected(query, "query", n_heads), projected(key, "key", n_kv_heads)
    v = projected(value, "value", n_kv_heads)
    scale = given.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ np.where(np.isfinite(k), k, 0).swapaxes(-1, -2)) + bias
    out, weights = attend(scores, v, allowed)
    out = out.swapaxes(-2, -3)
    out = out.reshape(*out.shape[:-2], -1)
    if given.get("output_weight") is not None:
        out = out @ wide(given["output_weight"])
    if given.get("output_bias") is not None:
        out = out + wide(given["output_bias"])
    return out, weights


def layer_norm(x, weight, bias, eps):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    x = x * wide(weight)
    return x if bias is None else x + wide(bias)


def gelu(x):
    return x * np.vectorize(lambda t: math.erfc(-t / math.sqrt(2)) / 2, otypes=[float])(x)


def relu(x):
    return np.maximum(x, 0)


def feed_forward(given, x, activation):
    def linear(x, n):
        y = x @ wide(given[f"linear{n}_weight"])
        b = given.get(f"linear{n}_bias")
        return y if b is None else y + wide(b)

    return linear(activation(linear(x, 1)), 2)


def transformer(given, x, attentions, activation, norm_first=False, eps=1e-5):
    """Parts around which residuals and norms are: attentions, then the feed-forward network."""
    parts = [*attentions, lambda y: feed_forward(given, y, activation)]
    for n, part in enumerate(parts, 1):
        norm = given[f"norm{n}_weight"], given.get(f"norm{n}_bias"), eps
        if norm_first:
            x = x + part(layer_norm(x, *norm))
        else:
            x = layer_norm(x + part(x), *norm)
    return x


def heads_case(rng, dtype, *, n_heads=2, n_kv_heads=None, query_dim=6, key_dim=None, value_dim=None,
               head_dim=4, value_head_dim=None, out_dim=5, biases=True):  # fmt: skip
    """Arguments of MultiHeadAttention; all sizes different unless they are to be equal."""
    key_dim = query_dim if key_dim is None else key_dim
    value_dim = key_dim if value_dim is None else value_dim
    value_head_dim = head_dim if value_head_dim is None else value_head_dim
    n_kv = n_heads if n_kv_heads is None else n_kv_heads
    shapes = {
        "query": (query_dim, n_heads * head_dim),
        "key": (key_dim, n_kv * head_dim),
        "value": (value_dim, n_kv * value_head_dim),
        "output": (n_heads * value_head_dim, out_dim),
    }
    given = {"num_heads": n_heads, "num_kv_heads": n_kv_heads}
    for name, shape in shapes.items():
        given[f"{name}_weight"] = uniform(rng, shape, dtype)
        if biases:
            given[f"{name}_bias"] = draw(rng, shape[1], dtype)
    return given


def frame_case(rng, dtype, *, dim=6, hidden=9, n_norms=2, biases=True):
    """Arguments of the Transformer layers besides their attention."""
    given = {
        "linear1_weight": uniform(rng, (dim, hidden), dtype),
        "linear2_weight": uniform(rng, (hidden, dim), dtype),
    }
    for n in range(1, n_norms + 1):
        given[f"norm{n}_weight"] = (1 + 0.2 * rng.standard_normal(dim)).astype(dtype)
    if biases:
        given |= {"linear1_bias": draw(rng, hidden, dtype), "linear2_bias": draw(rng, dim, dtype)}
        given |= {f"norm{n}_bias": draw(rng, dim, dtype) for n in range(1, n_norms + 1)}
    return given
