# SPDX-License-Identifier: MIT
# AttentionPooling: both scores, queries learned or given, padded and packed sequences.
# Used by the suite, on every backend.
# Dtypes, axes and wrong inputs of all layers are in test_layers.py.
"""A sequence becomes one vector: the average of its items by their scores with a query."""

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer, poisoned
from check_pooling import pooling
from layer_cases import drawn

from fastattn import layers

LENGTHS = np.array([5, 2, 0])
CU_SEQLENS = np.array([0, 4, 4, 9, 10])
KINDS = {
    "dot": ({}, {"query": 7}),
    "dot, projected": ({}, {"weight": (7, 8), "query": 8}),
    "additive": ({"score": "additive"}, {"weight": (7, 8), "query": 8}),
    "additive, bias": ({"score": "additive"}, {"weight": (7, 8), "query": 8, "bias": 8}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def made(rng, dtype, kind):
    options, shapes = KINDS[kind]
    return options | drawn(rng, dtype, **shapes)


@kinds
@pytest.mark.parametrize("final_tanh", [False, True])
def test_formula(backend, rng, real, kind, final_tanh):
    """With lengths, with a mask, with both."""
    weights = made(rng, real, kind) | {"final_tanh": final_tanh}
    layer = layers.AttentionPooling(**weights)
    x = draw(rng, (3, 5, 7), real)
    mask = rng.random((3, 5)) < 0.7
    for options in ({}, {"lengths": LENGTHS}, {"lengths": 3}, {"mask": mask},
                    {"lengths": LENGTHS, "mask": mask}):  # fmt: skip
        wanted = pooling(weights, x, **options)
        got = layer(x, **options, return_weights=True)
        assert_layer(got, wanted, real, str(options))
        assert not got[1][wanted[1] == 0].any(), "a hidden item has weight"
        assert_bits_equal(layer(x, **options), got[0])


@kinds
def test_packed_is_one_by_one(backend, rng, dtype, kind):
    """Sequences of different lengths without padding; what follows the last has weight 0."""
    weights = made(rng, dtype, kind) | {"final_tanh": True}
    layer = layers.AttentionPooling(**weights)
    x = draw(rng, (13, 7), dtype)
    wanted = pooling(weights, x, cu_seqlens=CU_SEQLENS)
    x[10:] = np.nan
    got = layer(x, cu_seqlens=CU_SEQLENS, return_weights=True)
    assert_layer(got, wanted, dtype)
    assert not got[1][10:].any() and not got[0][1].any()
    assert_bits_equal(layer(x, cu_seqlens=CU_SEQLENS.tolist()), got[0])


@kinds
def test_packed_and_padded_agree(backend, rng, kind):
    weights = made(rng, np.float64, kind)
    layer = layers.AttentionPooling(**weights)
    x = draw(rng, (3, 5, 7), np.float64)
    packed = np.concatenate([x[b, :n] for b, n in enumerate(LENGTHS)])
    out = layer(poisoned(x, LENGTHS), lengths=LENGTHS)
    assert_layer(layer(packed, cu_seqlens=[0, 5, 7, 7]), out, np.float64)


@kinds
def test_no_sequences(backend, rng, kind):
    layer = layers.AttentionPooling(**made(rng, np.float32, kind))
    out, alpha = layer(draw(rng, (13, 7)), cu_seqlens=[0], return_weights=True)
    assert out.shape == (0, 7) and alpha.shape == (13,) and not alpha.any()
    assert not layer(draw(rng, (3, 0, 7))).any()
    assert layer(draw(rng, (3, 0, 7))).shape == (3, 7)


@pytest.mark.parametrize("is_projected", [False, True])
def test_queries_of_the_call(backend, rng, real, is_projected):
    """One for each sequence, from another model; without weights any dtype is right."""
    weights = drawn(rng, real, weight=(7, 8)) if is_projected else {}
    layer = layers.AttentionPooling(**weights)
    x, query = draw(rng, (3, 5, 7), real), draw(rng, (3, 8 if is_projected else 7), real)
    wanted = pooling(weights, x, query, lengths=LENGTHS)
    assert_layer(layer(x, query, lengths=LENGTHS, return_weights=True), wanted, real)
    packed = np.concatenate([x[b, :n] for b, n in enumerate(LENGTHS)])
    assert_layer(layer(packed, query, cu_seqlens=[0, 5, 7, 7]), wanted[0], real)


def test_uniform_scores_are_the_mean(backend, rng):
    """A query of zeros is mean pooling, of the items that take part."""
    layer = layers.AttentionPooling(query=np.zeros(7))
    x = draw(rng, (3, 5, 7), np.float64)
    mask = np.array([1, 0, 1, 1, 0], bool)
    assert_layer(layer(x, mask=mask), x[:, mask].mean(axis=1), np.float64)


def test_wrong_layers(rng):
    """The message begins with the argument's name."""
    good = made(rng, np.float32, "additive, bias")
    for changes, error, argument in [
        ({"score": "general"}, ValueError, "score"),
        ({"weight": None}, ValueError, "weight"),
        ({"query": None}, ValueError, "query"),
        ({"bias": np.ones(7, np.float32)}, ValueError, "bias"),
        ({"query": np.ones(7, np.float32)}, ValueError, "query|weight"),
    ]:
        with pytest.raises(error, match=rf"^({argument})\b"):
            layers.AttentionPooling(**good | changes)


def test_wrong_calls(rng):
    """The message begins with the argument's name."""
    dot = layers.AttentionPooling(**made(rng, np.float32, "dot, projected"))
    additive = layers.AttentionPooling(**made(rng, np.float32, "additive"))
    no_query = layers.AttentionPooling(**drawn(rng, np.float32, weight=(7, 8)))
    x, packed, query = (draw(rng, shape) for shape in ((3, 5, 7), (13, 7), (3, 8)))
    for call, error, argument in [
        (lambda: no_query(x), ValueError, "query"),
        (lambda: additive(x, query), ValueError, "query"),
        (lambda: dot(x, query[:, :7]), ValueError, "query"),
        (lambda: dot(x, query[:2]), ValueError, "query"),
        (lambda: dot(x[..., :6]), ValueError, "x"),
        (lambda: dot(x, mask=np.ones((3, 4), bool)), ValueError, "mask"),
        (lambda: dot(x, mask=np.ones((3, 5), int)), TypeError, "mask"),
        (lambda: dot(x, mask=np.ones((3, 5), np.float32)), TypeError, "mask"),
        (lambda: dot(x, cu_seqlens=CU_SEQLENS), ValueError, "x"),
        (lambda: dot(packed, cu_seqlens=[0, 14]), ValueError, "cu_seqlens"),
        (lambda: dot(packed, cu_seqlens=[1, 4]), ValueError, "cu_seqlens"),
        (lambda: dot(packed, cu_seqlens=[0, 4, 3]), ValueError, "cu_seqlens"),
        (lambda: dot(packed, cu_seqlens=[]), ValueError, "cu_seqlens"),
        (lambda: dot(packed, cu_seqlens=[0.0, 4.0]), TypeError, "cu_seqlens"),
        (lambda: dot(packed, cu_seqlens=[0, 4], lengths=3), ValueError, "lengths|cu_seqlens"),
        (lambda: dot(packed, cu_seqlens=[0, 4], mask=np.ones(13, bool)),
         ValueError, "mask|cu_seqlens"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^({argument})\b"):
            call()
