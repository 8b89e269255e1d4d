# SPDX-License-Identifier: MIT
"""The layers' workloads with fastattn's layers, and as one writes them with NumPy.

Used by ``bench/ours.py`` and ``bench/contenders.py``; PyTorch's are in ``torch_layers.py``.  Layers
are made here, outside of what is timed.  It measures nothing.
"""

from __future__ import annotations

import functools

import numpy as np

from fastattn import layers

from .contender import Prepared

__all__ = ["fastattn_layer", "heads_first", "numpy_layer", "steps_to_numpy"]


def fastattn_layer(workload, inputs) -> Prepared:
    """A workload of ``bench/layers.py`` with the layer of the package."""
    return _OURS[workload.layer](workload, **inputs)


def numpy_layer(workload, inputs) -> Prepared:
    """The same as formulas of NumPy."""
    return _NUMPYS[workload.layer](workload, **inputs)


def steps_to_numpy(contexts):
    """Contexts (batch, size) of all steps, as ``(batch, 1, steps, size)``."""
    return np.stack([np.asarray(context) for context in contexts], axis=1)[:, None]


def heads_first(workload, out):
    """``(batch, tokens, dim)``, the columns cut as if into heads, as the comparison has them."""
    return np.asarray(out).reshape(*out.shape[:2], workload.n_q_heads, -1).swapaxes(1, 2)


def one_row_each(out):
    """``(documents, size)`` as ``(1, 1, documents, size)``."""
    return np.asarray(out)[None, None]


def _our_bahdanau(workload, queries, memory, **weights):
    layer = layers.BahdanauAttention(**weights)
    note, kept = "BahdanauAttention, prepare once a loop, in the time", None
    if workload.has_prepared_keys:
        note, kept = (
            "what BahdanauAttention.prepare returns, made beforehand",
            layer.prepare(memory),
        )

    def call():
        prepared = layer.prepare(memory) if kept is None else kept
        return [layer(query, prepared) for query in queries]

    return Prepared(call, steps_to_numpy, note)


def _our_hierarchical(workload, words, **weights):
    levels = {
        f"{level}_attention": layers.AttentionPooling(
            score="additive",
            **{name: weights[f"{level}_{name}"] for name in ("query", "weight", "bias")},
        )
        for level in ("word", "sentence")
    }
    lengths = workload.sentence_lengths, workload.document_lengths
    call = functools.partial(layers.HierarchicalAttention(**levels), words, *lengths)
    return Prepared(call, one_row_each, "HierarchicalAttention, packed words")


def _our_multi_head(workload, x, **weights):
    layer = layers.MultiHeadAttention(num_heads=workload.n_q_heads, **weights)
    call = functools.partial(layer, x, is_causal=workload.is_causal)
    return Prepared(call, functools.partial(heads_first, workload), "MultiHeadAttention")


def _softmax(scores):
    """Along the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _numpy_bahdanau(workload, queries, memory, attention_v, query_weight, key_weight, hidden_bias):
    def project():  # all states as rows of one product
        rows = memory.reshape(-1, memory.shape[-1]) @ key_weight
        rows += hidden_bias
        return rows.reshape(*memory.shape[:2], -1)

    kept = project() if workload.has_prepared_keys else None

    def call():
        keys = project() if kept is None else kept
        contexts = []
        for query in queries:
            hidden = (query @ query_weight)[:, None] + keys
            np.tanh(hidden, out=hidden)
            weights = _softmax(hidden @ attention_v)
            contexts.append((weights[:, None] @ memory)[:, 0])
        return contexts

    return Prepared(call, steps_to_numpy)


def _numpy_hierarchical(workload, words, **weights):
    levels = []
    for level, lengths in (
        ("word", workload.sentence_lengths),
        ("sentence", workload.document_lengths),
    ):
        arrays = (weights[f"{level}_{name}"] for name in ("weight", "bias", "query"))
        levels.append((*arrays, np.cumsum([0, *lengths[:-1]]), lengths))

    def call():
        vectors = words
        for weight, bias, query, starts, lengths in levels:
            hidden = vectors @ weight
            hidden += bias
            np.tanh(hidden, out=hidden)
            scores = hidden @ query
            scores -= np.repeat(np.maximum.reduceat(scores, starts), lengths)
            np.exp(scores, out=scores)
            scores /= np.repeat(np.add.reduceat(scores, starts), lengths)
            vectors = np.add.reduceat(scores[:, None] * vectors, starts, axis=0)
        return vectors

    return Prepared(call, one_row_each)


def _numpy_multi_head(workload, x, output_weight, output_bias, **weights):
    names = ("query", "key", "value")
    weight = np.concatenate([weights[f"{name}_weight"] for name in names], axis=1)
    bias = np.concatenate([weights[f"{name}_bias"] for name in names])
    batch, n_tokens, dim = x.shape
    rows = x.reshape(-1, dim)
    hidden = ~np.tri(n_tokens, dtype=bool) if workload.is_causal else None
    scale = np.float32(workload.head_size**-0.5)

    def call():
        packed = rows @ weight
        packed += bias
        packed = packed.reshape(batch, n_tokens, 3, workload.n_q_heads, workload.head_size)
        query, key, value = packed.transpose(2, 0, 3, 1, 4)
        scores = (query * scale) @ key.swapaxes(-1, -2)
        if hidden is not None:
            np.copyto(scores, -np.inf, where=hidden)
        out = (_softmax(scores) @ value).swapaxes(1, 2).reshape(-1, dim) @ output_weight
        out += output_bias
        return out.reshape(x.shape)

    return Prepared(call, functools.partial(heads_first, workload))


_OURS = {
    "bahdanau": _our_bahdanau,
    "hierarchical": _our_hierarchical,
    "multi-head": _our_multi_head,
}
_NUMPYS = {
    "bahdanau": _numpy_bahdanau,
    "hierarchical": _numpy_hierarchical,
    "multi-head": _numpy_multi_head,
}
