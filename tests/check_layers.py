# SPDX-License-Identifier: MIT
# The formulas of the layers in float64, and their tolerance.
# Used by test_layers*.py and test_catalog_*.py; layer_cases.py draws weights and inputs for them.
# It never calls fastattn to find an expected value.
"""Each layer as its paper has it, with all scores in memory.

A formula takes the layer's weights by name, and then what the layer is called with. What is hidden
may be NaN. Masks are bool, True = may attend, or float, which is added.
"""

from __future__ import annotations

import math

import numpy as np
from check import assert_close

# What the rounding of projections and scores may add to the tolerance of the last step.
SLACK = {"float64": 2e-13, "float32": 1e-5, "float16": 1e-4, "bfloat16": 1e-4}


def assert_layer(got, wanted, dtype, context="", slack=0.0):
    """Arrays, or tuples of them, in this dtype and within its tolerance; NaN is never right."""
    if not isinstance(wanted, tuple):
        got, wanted = (got,), (wanted,)
    assert isinstance(got, tuple) and len(got) == len(wanted), context
    for i, (one, other) in enumerate(zip(got, wanted)):
        assert type(one) is np.ndarray and one.dtype == dtype, f"result {i} {context}"
        allowed = SLACK[np.dtype(dtype).name] + slack
        assert_close(one, other, slack=allowed, context=f"result {i} {context}")


def wide(x):
    return np.asarray(x).astype(np.float64)


def poisoned(x, lengths, axis=-2):
    """A copy with NaN past the lengths, one for each index of the axes before `axis`."""
    real = reach(lengths, x.shape[axis], x.shape[: x.ndim + axis])
    return np.where(real.reshape(real.shape + (1,) * (-axis - 1)), x, x.dtype.type(np.nan))


def reach(lengths, n, lead):
    """(lead, n): which ones are real."""
    real = np.arange(n) < np.broadcast_to(n if lengths is None else lengths, lead)[..., None]
    return np.broadcast_to(real, (*lead, n))


def masked(scores, *masks):
    """-inf where a bool mask is False; float masks are added; None is no mask."""
    for mask in masks:
        if mask is not None and np.asarray(mask).dtype == np.bool_:
            scores = np.where(mask, scores, -np.inf)
        elif mask is not None:
            scores = scores + wide(mask)
    return scores


def softmax(scores):
    """Along the last axis; zeros where all is -inf."""
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def blend(weights, value):
    """weights @ value, where hidden values may be NaN."""
    value = wide(value)
    return weights @ np.where(np.isnan(value), 0, value)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _attend(scores, value, lengths, attn_mask, is_step, fade=None):
    if is_step and attn_mask is not None:
        attn_mask = np.asarray(attn_mask)[..., None, :]
    real = reach(lengths, scores.shape[-1], scores.shape[:-2])[..., None, :]
    weights = softmax(masked(scores, real, attn_mask))
    if fade is not None:
        weights = weights * fade
    return blend(weights, value), weights


def bahdanau(w, query, memory, *, value=None, memory_lengths=None, attn_mask=None):
    """(context, weights)"""
    is_step = query.ndim < memory.ndim
    q = wide(query)[..., None, :] if is_step else wide(query)
    vector = wide(w["attention_v"])
    if w.get("normalizer") is not None:
        vector = w["normalizer"] * vector / np.sqrt((vector**2).sum())
    hidden = (q @ wide(w["query_weight"]))[..., :, None, :]
    hidden = hidden + (wide(memory) @ wide(w["key_weight"]))[..., None, :, :]
    scores = np.tanh(hidden + wide(w.get("hidden_bias", 0.0))) @ vector
    value = memory if value is None else value
    results = _attend(scores, value, memory_lengths, attn_mask, is_step)
    return tuple(x[..., 0, :] for x in results) if is_step else results


def _luong_scores(w, q, k):
    kind = w.get("score", "dot")
    if kind == "dot":
        return q @ k.swapaxes(-1, -2)
    if kind == "general":
        return q @ wide(w["weight"]) @ k.swapaxes(-1, -2)
    if kind == "location":
        return np.broadcast_to((q @ wide(w["weight"]))[..., : k.shape[-2]],
                               (*q.shape[:-1], k.shape[-2]))  # fmt: skip
    shape = (*q.shape[:-1], k.shape[-2])
    q = np.broadcast_to(q[..., :, None, :], (*shape, q.shape[-1]))
    k = np.broadcast_to(k[..., None, :, :], (*shape, k.shape[-1]))
    both = np.concatenate([q, k], axis=-1)
    return np.tanh(both @ wide(w["weight"])) @ wide(w["attention_v"])


def luong(w, query, memory, *, memory_lengths=None, position=0, attn_mask=None):
    """(context or attentional state, weights)"""
    is_step = query.ndim < memory.ndim
    q = wide(query)[..., None, :] if is_step else wide(query)
    scores, fade = _luong_scores(w, q, wide(memory)), None
    lead, (n_queries, n_keys) = scores.shape[:-2], scores.shape[-2:]
    mode, width = w.get("mode", "global"), w.get("half_width")
    if mode != "global":
        p = np.broadcast_to(position, lead)[..., None] + np.arange(n_queries)
        if mode == "local-p":
            length = np.broadcast_to(n_keys if memory_lengths is None else memory_lengths, lead)
            bent = np.tanh(q @ wide(w["position_weight"])) @ wide(w["position_v"])
            p = length[..., None] * sigmoid(bent)
        away = np.arange(n_keys) - p[..., None]
        scores = masked(scores, abs(away) <= width)
        if mode == "local-p":
            fade = np.exp(-(away**2) / (2 * (width / 2) ** 2))
    out, weights = _attend(scores, memory, memory_lengths, attn_mask, is_step, fade)
    if "combine_weight" in w:
        out = np.tanh(np.concatenate([out, q], axis=-1) @ wide(w["combine_weight"]))
    return (out[..., 0, :], weights[..., 0, :]) if is_step else (out, weights)


def multi_head(w, query, key=None, value=None, *, key_padding_mask=None, attn_mask=None,
               is_causal=False, kv_lengths=None, window=None):  # fmt: skip
    """(out, weights of each head); w["kept"]: the dtype of a cache, to which keys and values are
    rounded."""
    n_heads = w["num_heads"]
    n_kv_heads = w.get("num_kv_heads") or n_heads
    key = query if key is None else key
    value = key if value is None else value

    def split(x, name, n):
        x = wide(x) @ wide(w[f"{name}_weight"]) + wide(w.get(f"{name}_bias", 0.0))
        return x.reshape(*x.shape[:-1], n, x.shape[-1] // n).swapaxes(-2, -3)

    q = split(query, "query", n_heads)
    k, v = split(key, "key", n_kv_heads), split(value, "value", n_kv_heads)
    if "kept" in w:
        k, v = wide(k.astype(w["kept"])), wide(v.astype(w["kept"]))
    k, v = (np.repeat(x, n_heads // n_kv_heads, axis=-3) for x in (k, v))
    scale = w.get("scale")
    scores = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    n_queries, n_keys = scores.shape[-2:]
    i, j = np.arange(n_queries)[:, None], np.arange(n_keys)
    real = reach(kv_lengths, n_keys, key.shape[:-2])[..., None, None, :]
    scores = masked(scores, real, attn_mask, j <= i if is_causal else None)
    if key_padding_mask is not None:
        scores = masked(scores, np.asarray(key_padding_mask)[..., None, None, :])
    if window is not None:
        scores = masked(scores, (i - window[0] <= j) & (j <= i + window[1]))
    weights = softmax(scores)
    out = blend(weights, v).swapaxes(-2, -3)
    out = out.reshape(*out.shape[:-2], out.shape[-2] * out.shape[-1])
    if "output_weight" in w:
        out = out @ wide(w["output_weight"]) + wide(w.get("output_bias", 0.0))
    return out, weights


def _norm(w, name, x):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + w.get("norm_eps", 1e-5))
    return x * wide(w[f"{name}_weight"]) + wide(w.get(f"{name}_bias", 0.0))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def relu(x):
    return np.where(x > 0, x, 0)


def _feed_forward(w, x):
    activation = w.get("activation", "relu")
    activation = {"relu": relu, "gelu": gelu}.get(activation, activation)
    x = activation(x @ wide(w["linear1_weight"]) + wide(w.get("linear1_bias", 0.0)))
    return x @ wide(w["linear2_weight"]) + wide(w.get("linear2_bias", 0.0))


def _residuals(w, x, *blocks):
    """x and each block's part of it, normed before the block or after the sum."""
    for n, block in enumerate(blocks, 1):
        if w.get("norm_first"):
            x = x + block(_norm(w, f"norm{n}", x))
        else:
            x = _norm(w, f"norm{n}", x + block(x))
    return x


def encoder(w, src, *, src_mask=None, src_key_padding_mask=None, is_causal=False):
    masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
    return _residuals(
        w, wide(src),
        lambda x: multi_head(w["self_attention"], x, **masks, is_causal=is_causal)[0],
        lambda x: _feed_forward(w, x),
    )  # fmt: skip


def decoder(w, tgt, memory, *, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None,
            memory_key_padding_mask=None, tgt_is_causal=False, memory_is_causal=False):  # fmt: skip
    own = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
    cross = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
    return _residuals(
        w, wide(tgt),
        lambda x: multi_head(w["self_attention"], x, **own, is_causal=tgt_is_causal)[0],
        lambda x: multi_head(w["cross_attention"], x, memory, **cross,
                             is_causal=memory_is_causal)[0],
        lambda x: _feed_forward(w, x),
    )  # fmt: skip
