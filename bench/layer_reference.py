# SPDX-License-Identifier: MIT
"""What the output of a layer must be, in float64, and how far from it a contender's may be.

Used by ``bench/reference.py``.  It shares no code with the package's computing, and takes no
sample: every row is compared.

Numbers of a layer are sums of products of sums: what could be lost in the worst case says nothing
about what is lost.  So an element may differ by 2e-5 of the largest of its row (of one head), and
by 2e-6; several times what is seen of anyone, and less than what fewer bits than float32's cost.
"""

from __future__ import annotations

import numpy as np

from fastattn._cli import oracle

__all__ = ["expected"]


def expected(workload, inputs) -> oracle.Expected:
    """All rows of a workload of ``bench/layers.py``."""
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    out = _FORMULAS[workload.layer](workload, **wide)
    rows = np.zeros(out.shape[:-1])
    largest = np.abs(out).max(axis=-1, keepdims=True)
    return oracle.Expected(out, rows, None, np.broadcast_to(largest, out.shape), rows)


def _softmax(scores) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _bahdanau(workload, queries, memory, attention_v, query_weight, key_weight, hidden_bias):
    keys = memory @ key_weight + hidden_bias
    steps = [
        _softmax(np.tanh((query @ query_weight)[:, None] + keys) @ attention_v) for query in queries
    ]
    return (np.stack(steps, axis=1) @ memory)[:, None]


def _hierarchical(workload, words, **weights):
    for level, lengths in (
        ("word", workload.sentence_lengths),
        ("sentence", workload.document_lengths),
    ):
        weight, bias, query = (weights[f"{level}_{name}"] for name in ("weight", "bias", "query"))
        scores = np.tanh(words @ weight + bias) @ query
        pieces = zip(*(np.split(array, np.cumsum(lengths)[:-1]) for array in (scores, words)))
        words = np.array([_softmax(some) @ vectors for some, vectors in pieces])
    return words[None, None]


def _multi_head(workload, x, output_weight, output_bias, **weights):
    query, key, value = (
        _heads(workload, x @ weights[f"{name}_weight"] + weights[f"{name}_bias"])
        for name in ("query", "key", "value")
    )
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(workload.head_size)
    if workload.is_causal:
        scores[..., ~np.tri(*scores.shape[-2:], dtype=bool)] = -np.inf
    joined = (_softmax(scores) @ value).swapaxes(1, 2).reshape(x.shape)
    return _heads(workload, joined @ output_weight + output_bias)


def _heads(workload, x):
    """``(batch, tokens, dim)`` as ``(batch, heads, tokens, head size)``."""
    return x.reshape(*x.shape[:2], workload.n_q_heads, -1).swapaxes(1, 2)


_FORMULAS = {
    "bahdanau": _bahdanau,
    "hierarchical": _hierarchical,
    "multi-head": _multi_head,
}
