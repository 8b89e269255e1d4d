# SPDX-License-Identifier: MIT
# The expected values of additive attention and its error bound.
# Used by test_additive*.py and test_scores.py; all that follows the scores is check.py's.
# It never calls fastattn to find an expected value.
"""The additive score term by term in wide floats, and what float32 may make of it."""

from __future__ import annotations

import numpy as np
from check import SCORE_ERROR, accumulator, assert_close, attend, draw

import fastattn


def scores(q, k, vectors, query_weight, key_weight, hidden_bias, wide, dtype):
    """sum_u a_u tanh((q Wq)_u + (k Wk)_u + b_u) for (N, H, S, dim), and the error of each.

    The error is the promised bound, plus what the rounding of projections of sums makes of it.
    """
    acc = accumulator(dtype)
    half_ulp = 2.0**-24 if acc == np.float32 else 2.0**-53

    def projected(x, weight):
        if weight is None:
            return x, 0 * x
        weight = np.asarray(weight).astype(acc).astype(wide)
        factor = half_ulp * (4 + np.sqrt(len(weight)))
        return x @ weight, factor * (abs(x) @ abs(weight))

    q, q_spread = projected(q, query_weight)
    k, k_spread = projected(k, key_weight)
    if hidden_bias is not None:
        hidden_bias = np.asarray(hidden_bias).astype(acc).astype(wide)
        k_spread = k_spread + half_ulp * (abs(k) + abs(hidden_bias))
        k = k + hidden_bias
    vectors = np.ones(q.shape[-1]) if vectors is None else np.asarray(vectors)
    vectors = vectors.astype(acc).astype(wide)
    if vectors.ndim == 2:
        vectors = vectors[:, None, :]
    s, error = (np.empty((*q.shape[:3], k.shape[2]), wide) for _ in range(2))
    for i in range(q.shape[2]):
        bent = np.tanh(q[:, :, i, None, :] + k)
        s[:, :, i] = (vectors * bent).sum(axis=-1)
        spread = q_spread[:, :, i, None, :] + k_spread
        bound = 34 * half_ulp * abs(vectors * bent).sum(axis=-1)
        bound = bound + 4 * half_ulp * np.minimum(abs(vectors).sum(axis=-1), 1024)
        error[:, :, i] = bound + (abs(vectors) * (1 - bent**2) * spread).sum(axis=-1)
    return s, error


def expected_additive(query, key, value, attention_v, *, query_weight=None, key_weight=None,
                      hidden_bias=None, **options):  # fmt: skip
    """All results of additive_attention in wide floats."""
    unit = SCORE_ERROR[accumulator(query.dtype).name]

    def additive(q, k, wide):
        parameters = (attention_v, query_weight, key_weight, hidden_bias)
        s, error = scores(q, k, *parameters, wide, query.dtype)
        return s, error / unit

    return attend(additive, query, key, value, **options)


def check_additive(query, key, value, attention_v, *, keys=None, context="", **options):
    """Call fastattn into a poisoned `out`, compare out, lse and weights; return out.

    `keys`, if given, are what is passed instead of key, key_weight and hidden_bias.
    """
    want = expected_additive(query, key, value, attention_v, **options)
    out = np.full(want.out.shape, np.nan, query.dtype.newbyteorder("="))
    if keys is not None:
        key = keys
        options = {n: x for n, x in options.items() if n not in ("key_weight", "hidden_bias")}
    got = fastattn.additive_attention(
        query, key, value, attention_v, out=out, return_lse=True, return_weights=True, **options
    )
    assert got[0] is out
    assert_close(out, want.out, slack=want.out_slack, size=want.size, context=f"out {context}")
    assert got[1].dtype == accumulator(query.dtype) and got[2].dtype == out.dtype
    assert_close(got[1], want.lse, slack=want.lse_slack, context=f"lse {context}")
    slack = np.where(want.weights == 0, 0, want.weights_slack)  # also in rows that are NaN
    assert_close(got[2], want.weights, slack=slack, context=f"weights {context}")
    assert not got[2][want.weights == 0].any(), f"a hidden key has weight {context}"
    return out


def case(rng, dtype=np.float32, *, lead=(2,), heads=3, kv_heads=None, queries=5, keys=7,
         hidden=11, query_dim=4, key_dim=8, dv=6, without=()):  # fmt: skip
    """Random arguments by name, all sizes different; `without` names parameters to leave out."""
    kv_heads = heads if kv_heads is None else kv_heads
    if "query_weight" in without:
        query_dim = hidden
    if "key_weight" in without:
        key_dim = hidden
    made = {
        "query": draw(rng, (*lead, heads, queries, query_dim), dtype),
        "key": draw(rng, (*lead, kv_heads, keys, key_dim), dtype),
        "value": draw(rng, (*lead, kv_heads, keys, dv), dtype),
        "attention_v": draw(rng, hidden, dtype),
        "query_weight": draw(rng, (query_dim, hidden), dtype),
        "key_weight": draw(rng, (key_dim, hidden), dtype),
        "hidden_bias": draw(rng, hidden, dtype),
    }
    return {name: x for name, x in made.items() if name not in without}


PROJECTED = ("query_weight", "key_weight", "hidden_bias")  # `without` for projected inputs
