# SPDX-License-Identifier: MIT
# The formulas of the layers that pool one sequence or compare two, in float64.
# Used by test_layers*.py and test_catalog_*.py, beside check_layers.py.
# It never calls fastattn to find an expected value.
"""Pooling, hierarchies of it, attention over attention and the forms around a convolution."""

from __future__ import annotations

import numpy as np
from check_layers import blend, masked, reach, softmax, wide


def pooling(w, x, query=None, *, lengths=None, mask=None, cu_seqlens=None):
    """(out, weights)"""
    if cu_seqlens is not None:
        return _packed_pooling(w, x, cu_seqlens)
    keys = wide(x)
    if w.get("weight") is not None:
        keys = keys @ wide(w["weight"]) + wide(w.get("bias", 0.0))
    if w.get("score", "dot") == "additive":
        keys = np.tanh(keys)
    query = wide(w["query"] if query is None else query)
    scores = (keys * query[..., None, :]).sum(axis=-1)
    weights = softmax(masked(scores, reach(lengths, x.shape[-2], x.shape[:-2]), mask))
    out = blend(weights[..., None, :], x)[..., 0, :]
    return np.tanh(out) if w.get("final_tanh") else out, weights


def _packed_pooling(w, x, cu_seqlens):
    weights = np.zeros(len(x))
    out = []
    for start, stop in zip(cu_seqlens[:-1], cu_seqlens[1:]):
        context, weights[start:stop] = pooling(w, x[start:stop])
        out.append(context)
    return np.array(out).reshape(len(out), x.shape[-1]), weights


def hierarchical(w, words, sentence_lengths, document_lengths):
    """(documents, weights of words, weights of sentences); encoders are among the weights."""
    results = []
    level = wide(words)
    for name, lengths in (("word", sentence_lengths), ("sentence", document_lengths)):
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        encoder = w.get(f"{name}_encoder")
        level = level if encoder is None else encoder(level, cu_seqlens)
        level, weights = _packed_pooling(w[f"{name}_attention"], level, cu_seqlens)
        results.append(weights)
    return level, *results


def _pairs(x_lengths, y_lengths, shape):
    """Where both are real: (..., x_length, y_length)."""
    of_x = reach(x_lengths, shape[-2], shape[:-2])
    return of_x[..., :, None] & reach(y_lengths, shape[-1], shape[:-2])[..., None, :]


def attention_over_attention(w, document, query, *, document_lengths=None, query_lengths=None):
    scores = wide(document) @ wide(query).swapaxes(-1, -2)
    real = _pairs(document_lengths, query_lengths, scores.shape)
    scores = masked(scores, real)
    alpha = softmax(scores.swapaxes(-1, -2)).swapaxes(-1, -2)
    n = reach(document_lengths, scores.shape[-2], scores.shape[:-2]).sum(axis=-1)
    beta = softmax(scores).sum(axis=-2) / np.maximum(n, 1)[..., None]
    return (alpha @ beta[..., None])[..., 0]


def attentive_pooling(w, x, y, *, x_lengths=None, y_lengths=None):
    """(pooled x, pooled y, weights of x, weights of y)"""
    match = np.tanh(wide(x) @ wide(w["weight"]) @ wide(y).swapaxes(-1, -2))
    match = masked(match, _pairs(x_lengths, y_lengths, match.shape))
    weights_x = softmax(match.max(axis=-1, initial=-np.inf))
    weights_y = softmax(match.max(axis=-2, initial=-np.inf))
    pooled = [blend(a[..., None, :], b)[..., 0, :] for a, b in ((weights_x, x), (weights_y, y))]
    return *pooled, weights_x, weights_y


def match_matrix(w, x, y, *, x_lengths=None, y_lengths=None):
    away = wide(x)[..., :, None, :] - wide(y)[..., None, :, :]
    match = 1 / (1 + np.sqrt((away**2).sum(axis=-1)))
    return np.where(_pairs(x_lengths, y_lengths, match.shape), match, 0)


def abcnn1(w, x, y, **lengths):
    match = match_matrix(w, x, y, **lengths)
    return match @ wide(w["x_weight"]), match.swapaxes(-1, -2) @ wide(w["y_weight"])


def abcnn2(w, x, y, **lengths):
    match = match_matrix(w, x, y, **lengths)
    pooled = []
    for factors, rows in ((match.sum(axis=-1), wide(x)), (match.sum(axis=-2), wide(y))):
        rows = factors[..., None] * np.where(np.isnan(rows), 0, rows)
        n = rows.shape[-2] - w["width"] + 1
        pooled.append(sum(rows[..., k : k + n, :] for k in range(w["width"])))
    return tuple(pooled)
