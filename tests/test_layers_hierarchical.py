# SPDX-License-Identifier: MIT
# HierarchicalAttention against its formula: ragged documents, encoders, weights, errors.
# Used by the suite, on every backend.
# The pooling of one level is tested in test_layers_pooling.py.
"""Words to sentences to documents, none of them padded."""

import pickle
import re

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw

from fastattn.layers import AttentionPooling, HierarchicalAttention

F = np.float32
SENTENCES = [3, 0, 5, 1, 40, 2]
DOCUMENTS = [2, 0, 1, 3]


def parameters(rng, dtype, dim, units):
    return {
        "query": draw(rng, units, dtype),
        "weight": draw(rng, (dim, units), dtype, 0.5),
        "bias": draw(rng, units, dtype),
    }


def pool(x, query, weight, bias):
    """The formula for one sequence: the result and the weights."""
    logits = np.tanh(x @ weight.astype(float) + bias.astype(float)) @ query.astype(float)
    e = np.exp(logits - logits.max(initial=-1e300))
    alpha = e / e.sum() if len(x) else e
    return alpha @ x if len(x) else np.zeros(x.shape[1]), alpha


def level(x, lengths, weights):
    parts = np.split(x, np.cumsum(lengths)[:-1])
    done = [pool(part, **weights) for part in parts]
    return np.array([c for c, _ in done]), np.concatenate([alpha for _, alpha in done])


@pytest.mark.parametrize("encoded", [False, True])
def test_the_formula(backend, rng, dtype, encoded):
    """Empty sentences and documents; encoders get each level packed, and where it ends."""
    sizes = (6, 9) if encoded else (5, 5)
    weights = [parameters(rng, dtype, dim, units) for dim, units in zip(sizes, (7, 4))]
    maps = [draw(rng, shape, F, 0.5) for shape in ((5, 6), (6, 9))]
    seen = []

    def encoder(which):
        def run(packed, cu_seqlens):
            seen.append(cu_seqlens)
            return np.tanh(packed.astype(F) @ maps[which]).astype(dtype)

        return run

    attentions = [AttentionPooling(score="additive", **w) for w in weights]
    layer = HierarchicalAttention(
        word_attention=attentions[0],
        sentence_attention=attentions[1],
        word_encoder=encoder(0) if encoded else None,
        sentence_encoder=encoder(1) if encoded else None,
    )
    words = draw(rng, (51, 5), dtype)
    documents, word_weights, sentence_weights = layer(
        words, SENTENCES, DOCUMENTS, return_weights=True
    )
    assert documents.dtype == word_weights.dtype == sentence_weights.dtype == dtype
    assert_bits_equal(layer(words, np.array(SENTENCES), np.array(DOCUMENTS)), documents)
    x = np.tanh(words.astype(F) @ maps[0]).astype(dtype) if encoded else words
    sentences, want_words = level(x.astype(float), SENTENCES, weights[0])
    if encoded:
        sentences = np.tanh(sentences @ maps[1])
    want, want_sentences = level(sentences, DOCUMENTS, weights[1])
    # 16-bit sentence vectors are rounded between the levels
    slack = {"float64": 1e-5 if encoded else 0, "float32": 2e-5}.get(np.dtype(dtype).name, 2e-2)
    assert_close(documents, want, slack=slack)
    assert_close(word_weights, want_words, slack=slack)
    assert_close(sentence_weights, want_sentences, slack=slack)
    if encoded:
        assert [ends.tolist() for ends in seen[:2]] == [[0, 3, 3, 8, 9, 49, 51], [0, 2, 2, 3, 6]]


def test_nothing_at_all(backend, rng, real):
    layer = HierarchicalAttention(
        word_attention=AttentionPooling(score="additive", **parameters(rng, real, 5, 3)),
        sentence_attention=AttentionPooling(query=draw(rng, 5, real)),
    )
    assert layer(np.zeros((0, 5), real), [], []).shape == (0, 5)
    assert not layer(np.zeros((0, 5), real), [], [0, 0]).any()
    assert not layer(np.zeros((0, 5), real), [0, 0, 0], [1, 2]).any()
    again = pickle.loads(pickle.dumps(layer))
    x = draw(rng, (4, 5), real)
    assert_bits_equal(again(x, [3, 1], [2]), layer(x, [3, 1], [2]))
    assert repr(again) == repr(layer) and "\n" not in repr(layer) and layer.dtype == real


def pooling(dim=5, dtype=F):
    return AttentionPooling(query=np.ones(dim, dtype))


def mask_of(packed, cu_seqlens):
    return packed[:-1]


MAKING = [
    ({"word_attention": None}, TypeError, "word_attention"),
    ({"sentence_attention": AttentionPooling()}, ValueError, "sentence_attention"),
    ({"sentence_attention": pooling(6)}, ValueError, "sentence_attention"),
    ({"sentence_attention": pooling(5, float)}, TypeError, "sentence_attention"),
    ({"word_encoder": "lstm"}, TypeError, "word_encoder"),
]


@pytest.mark.parametrize(("wrong", "error", "name"), MAKING)
def test_wrong_levels(wrong, error, name):
    with pytest.raises(error, match=rf"^{re.escape(name)}: expected"):
        HierarchicalAttention(
            **{"word_attention": pooling(), "sentence_attention": pooling()} | wrong
        )


CALLS = [
    ({"words": np.ones((6, 4), F)}, ValueError, "words"),
    ({"words": np.ones((1, 6, 5), F)}, ValueError, "words"),
    ({"words": np.ones((6, 5))}, TypeError, "words"),
    ({"sentence_lengths": [3, 2]}, ValueError, "sentence_lengths"),
    ({"sentence_lengths": [3, 4]}, ValueError, "sentence_lengths"),
    ({"sentence_lengths": [9, -3]}, ValueError, "sentence_lengths"),
    ({"sentence_lengths": [[3, 3]]}, ValueError, "sentence_lengths"),
    ({"sentence_lengths": [3.0, 3.0]}, TypeError, "sentence_lengths"),
    ({"sentence_lengths": [1 << 62, 1 << 62, 6]}, ValueError, "sentence_lengths"),
    ({"document_lengths": [1]}, ValueError, "document_lengths"),
    ({"document_lengths": [2, 1]}, ValueError, "document_lengths"),
    ({"return_weights": 2}, TypeError, "return_weights"),
]


@pytest.mark.parametrize(("wrong", "error", "name"), CALLS)
def test_wrong_calls(wrong, error, name):
    layer = HierarchicalAttention(word_attention=pooling(), sentence_attention=pooling())
    right = {"words": np.ones((6, 5), F), "sentence_lengths": [3, 3], "document_lengths": [2]}
    with pytest.raises(error, match=rf"^{re.escape(name)}: expected"):
        layer(**right | wrong)


def test_encoders_that_return_something_else():
    both = {"word_attention": pooling(), "sentence_attention": pooling()}
    arguments = np.ones((6, 5), F), [3, 3], [2]
    for name in ("word_encoder", "sentence_encoder"):
        with pytest.raises(ValueError, match=rf"^{name}: expected it to return shape"):
            HierarchicalAttention(**both, **{name: mask_of})(*arguments)
        with pytest.raises(TypeError, match=rf"^{name}: expected it to return dtype"):
            HierarchicalAttention(**both, **{name: lambda x, ends: x.astype(float)})(*arguments)
