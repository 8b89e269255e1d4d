# SPDX-License-Identifier: MIT
# HierarchicalAttention: words to sentences to documents, ragged, with encoders between.
# Used by the suite, on every backend.
# Dtypes and wrong inputs of all layers are in test_layers.py, its parts in test_catalog_pooling.py.
"""A document is an average of its sentences, which are averages of their words."""

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer
from check_pooling import hierarchical
from layer_cases import build, drawn

WORDS, SENTENCES, DOCUMENTS = 16, np.array([4, 0, 5, 1, 3, 3]), np.array([2, 0, 3, 1])


def made(rng, dtype, dim=7, sentence_dim=7):
    """Weights of a HAN's two levels: u . tanh(W x + b) for each."""
    return {
        "word_attention": {"score": "additive"}
        | drawn(rng, dtype, weight=(dim, 8), query=8, bias=8),
        "sentence_attention": {"score": "additive"}
        | drawn(rng, dtype, weight=(sentence_dim, 9), query=9, bias=9),
    }


def test_formula(backend, rng, dtype):
    """Empty sentences are zero vectors that take part, empty documents are zeros."""
    weights = made(rng, dtype)
    layer = build("HierarchicalAttention", weights)
    words = draw(rng, (WORDS, 7), dtype)
    got = layer(words, SENTENCES, DOCUMENTS, return_weights=True)
    assert_layer(got, hierarchical(weights, words, SENTENCES, DOCUMENTS), dtype)
    assert not got[0][1].any() and got[2][1] > 0
    assert_bits_equal(layer(words, SENTENCES.tolist(), DOCUMENTS.tolist()), got[0])


def test_weights_of_each_level_sum_to_one(backend, rng):
    """Over the words of a sentence, over the sentences of a document."""
    layer = build("HierarchicalAttention", made(rng, np.float64))
    words = draw(rng, (WORDS, 7), np.float64)
    _, of_words, of_sentences = layer(words, SENTENCES, DOCUMENTS, return_weights=True)
    for weights, lengths in ((of_words, SENTENCES), (of_sentences, DOCUMENTS)):
        parts = np.split(weights, np.cumsum(lengths)[:-1])
        sums = np.array([part.sum() for part in parts])
        assert_layer(sums, (lengths > 0).astype(float), np.float64)


class Encoder:
    """Mixes each item with the one before it in its sequence, into another size; counts calls."""

    def __init__(self, weight):
        self.weight = weight
        self.calls = []

    def __call__(self, packed, cu_seqlens):
        self.calls.append((len(packed), np.asarray(cu_seqlens).tolist()))
        out = np.array(packed)
        for start, stop in zip(cu_seqlens[:-1], cu_seqlens[1:]):
            out[start + 1 : stop] += 0.5 * packed[start : stop - 1]
        return np.tanh(out @ self.weight.astype(out.dtype))


def test_encoders(backend, rng, real):
    """Each gets its whole level at once, packed, and may change the size."""
    weights = made(rng, real, 10, 11)
    weights |= {
        "word_encoder": Encoder(draw(rng, (7, 10), real)),
        "sentence_encoder": Encoder(draw(rng, (10, 11), real)),
    }
    layer = build("HierarchicalAttention", weights)
    words = draw(rng, (WORDS, 7), real)
    got = layer(words, SENTENCES, DOCUMENTS, return_weights=True)
    assert weights["word_encoder"].calls == [(16, [0, 4, 4, 9, 10, 13, 16])]
    assert weights["sentence_encoder"].calls == [(6, [0, 2, 2, 5, 6])]
    assert_layer(got, hierarchical(weights, words, SENTENCES, DOCUMENTS), real)
    assert got[0].shape == (4, 11)


def test_documents_do_not_depend_on_each_other(backend, rng):
    """Bits, too, and whether one holds NaN."""
    layer = build("HierarchicalAttention", made(rng, np.float32))
    words = draw(rng, (WORDS, 7))
    whole = layer(words, SENTENCES, DOCUMENTS)
    assert_bits_equal(layer(words[4:13], SENTENCES[2:5], [3])[0], whole[2])
    words[:4] = np.nan
    out = layer(words, SENTENCES, DOCUMENTS)
    assert np.isnan(out[0]).all()
    assert_bits_equal(out[1:], whole[1:])


def test_nothing_at_all(backend, rng):
    layer = build("HierarchicalAttention", made(rng, np.float32))
    nothing = np.zeros((0, 7), np.float32)
    empty = np.zeros(0, int)
    out, of_words, of_sentences = layer(nothing, empty, empty, return_weights=True)
    assert (out.shape, of_words.shape, of_sentences.shape) == ((0, 7), (0,), (0,))
    assert not layer(nothing, empty, [0, 0]).any()


def test_wrong_calls(rng):
    """The message names the argument; encoders that lose items are found out."""
    weights = made(rng, np.float32)
    layer = build("HierarchicalAttention", weights)
    words = draw(rng, (WORDS, 7))
    more, less = SENTENCES + np.eye(6, dtype=int)[0], SENTENCES - np.eye(6, dtype=int)[0]
    lossy = build("HierarchicalAttention", weights | {"word_encoder": lambda x, cu: x[1:]})
    for call, error, argument in [
        (lambda: layer(words, more, DOCUMENTS), ValueError, "words|sentence_lengths"),
        (lambda: layer(words, less, DOCUMENTS), ValueError, "words|sentence_lengths"),
        (lambda: layer(words, SENTENCES, [2, 3]), ValueError, "sentence_lengths|document_lengths"),
        (lambda: layer(words, SENTENCES, [7]), ValueError, "sentence_lengths|document_lengths"),
        (lambda: layer(words, SENTENCES[None], DOCUMENTS), ValueError, "sentence_lengths"),
        (lambda: layer(words, SENTENCES, DOCUMENTS[None]), ValueError, "document_lengths"),
        (lambda: layer(words[None], SENTENCES, DOCUMENTS), ValueError, "words"),
        (lambda: layer(words[:, :6], SENTENCES, DOCUMENTS), ValueError, "words"),
        (lambda: lossy(words, SENTENCES, DOCUMENTS), ValueError, "word_encoder"),
    ]:
        with pytest.raises(error, match=rf"^({argument})\b"):
            call()
    for wrong in (3, "encoder"):
        with pytest.raises(TypeError, match="^sentence_encoder"):
            build("HierarchicalAttention", weights | {"sentence_encoder": wrong})
