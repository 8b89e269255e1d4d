# SPDX-License-Identifier: MIT
# AttentionPooling against its formula: dense and packed, both scores, masks, weights, errors.
# Used by the suite, on every backend.
# Two levels of it are in test_layers_hierarchical.py.
"""One vector for a sequence: the mean of its tokens, weighted by a softmax."""

import doctest
import importlib
import pickle
import re

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw

import fastattn
from fastattn.layers import AttentionPooling

F = np.float32
FORMS = ["dot", "dot with weight", "additive", "additive with bias", "given", "given with weight"]


def some_layer(rng, form, dtype, dim=5, size=7):
    """(layer, its weights by name, size of the queries that it takes at the call)."""
    weights = {}
    if form.endswith("weight") or form.startswith("additive"):
        weights["weight"] = draw(rng, (dim, size), dtype, 0.5)
    size = size if weights else dim
    if not form.startswith("given"):
        weights["query"] = draw(rng, size, dtype)
    if form.endswith("bias"):
        weights["bias"] = draw(rng, size, dtype)
    score = "additive" if form.startswith("additive") else "dot"
    return AttentionPooling(score=score, **weights), weights, size


def pooled(x, weights, query=None, real=None, additive=False):
    """The formula for one sequence (length, dim): the result and the weights."""
    x = x.astype(float)
    weights = {name: w.astype(float) for name, w in weights.items()}
    real = np.ones(len(x), bool) if real is None else real
    query = weights["query"] if query is None else query.astype(float)
    hidden = np.where(real[:, None], x, 0)
    hidden = hidden @ weights["weight"] if "weight" in weights else hidden
    logits = np.tanh(hidden + weights.get("bias", 0)) @ query if additive else hidden @ query
    top = logits[real].max() if real.any() else 0
    e = np.where(real, np.exp(np.minimum(logits - top, 0)), 0)
    alpha = e / e.sum() if real.any() else e
    return alpha @ np.where(real[:, None], x, 0), alpha


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_the_formula(backend, rng, dtype, form, lead):
    """Any number of leading axes; lengths, masks, and both; an empty sequence; NaN beyond."""
    layer, weights, size = some_layer(rng, form, dtype)
    x = draw(rng, (*lead, 9, 5), dtype)
    query = draw(rng, (*lead, size), dtype) if form.startswith("given") else None
    lengths = rng.integers(0, 10, lead)
    mask = rng.random((*lead, 9)) < 0.6
    mask[..., 8] = True
    for options in ({}, {"lengths": lengths}, {"mask": mask}, {"lengths": lengths, "mask": mask}):
        real = np.ones((*lead, 9), bool)
        if "lengths" in options:
            real &= np.arange(9) < lengths[..., None]
        if "mask" in options:
            real &= mask
        dirty = np.where(real[..., None], x, x.dtype.type(np.nan))
        got, alpha = layer(dirty, query, return_weights=True, **options)
        assert got.dtype == alpha.dtype == dtype
        assert_bits_equal(layer(dirty, query, **options), got)
        for i in np.ndindex(lead):
            own = None if query is None else query[i]
            want = pooled(x[i], weights, own, real[i], form.startswith("additive"))
            assert_close(got[i], want[0], slack=2e-5 if dtype != np.float64 else 0)
            assert_close(alpha[i], want[1], slack=2e-5 if dtype != np.float64 else 0)
            assert not alpha[i][~real[i]].any()


@pytest.mark.parametrize("form", FORMS)
def test_packed(backend, rng, dtype, form):
    """Sequences of any lengths, one after the other: each has what it has alone."""
    layer, weights, size = some_layer(rng, form, dtype)
    cu = np.array([0, 0, 4, 5, 5, 45, 130, 130])
    x = draw(rng, (134, 5), dtype)
    x[130:] = np.nan
    query = draw(rng, (7, size), dtype) if form.startswith("given") else None
    got, alpha = layer(x, query, cu_seqlens=cu, return_weights=True)
    assert got.shape == (7, 5) and alpha.shape == (134,) and got.dtype == alpha.dtype == dtype
    assert_bits_equal(layer(x, query, cu_seqlens=cu.tolist()), got)
    assert not alpha[130:].any()
    for i in range(7):
        some = slice(cu[i], cu[i + 1])
        own = None if query is None else query[i]
        want = pooled(x[some], weights, own, additive=form.startswith("additive"))
        slack = 2e-5 if dtype != np.float64 else 0
        assert_close(got[i], want[0], slack=slack)
        assert_close(alpha[some], want[1], slack=slack)
        assert_close(got[i], layer(x[some], own).astype(float), slack=slack)


@pytest.mark.parametrize("form", FORMS)
def test_packed_weights_have_the_bits_of_each_sequence_alone(backend, rng, real, form):
    layer, _, size = some_layer(rng, form, real, dim=33, size=40)
    cu = np.cumsum([0, 3, 1, 50, 0, 7, 40, 33, 32, 2, *[1, 2] * 15])
    x, query = draw(rng, (cu[-1], 33), real), draw(rng, (39, size), real)
    query = query if form.startswith("given") else None
    _, alpha = layer(x, query, cu_seqlens=cu, return_weights=True)
    for i in range(39):
        some = slice(cu[i], cu[i + 1])
        own = None if query is None else query[i : i + 1]
        _, alone = layer(x[some], own, cu_seqlens=[0, cu[i + 1] - cu[i]], return_weights=True)
        assert_bits_equal(alone, alpha[some])


@pytest.mark.parametrize("form", ["dot", "additive"])
def test_large_scores(backend, rng, real, form):
    """Scores of thousands: weights of packed tokens still add up to 1."""
    layer, weights, _ = some_layer(rng, form, real)
    factor = 300 if form == "dot" else 1e4
    weights["query"] = weights["query"] * real.type(factor)
    layer = AttentionPooling(score=form, **weights)
    cu, x = np.array([0, 3, 60, 64]), draw(rng, (64, 5), real, 3)
    got, alpha = layer(x, cu_seqlens=cu, return_weights=True)
    assert np.isfinite(alpha).all()
    for i in range(3):
        some = slice(cu[i], cu[i + 1])
        want, exact = pooled(x[some], weights, additive=form == "additive")
        slack = 5e-2 if real == F else 1e-10  # a score of 1e4 has an error of 1e-3 in float32
        assert_close(alpha[some].sum(), np.array(1.0), dtype=real)
        assert_close(alpha[some], exact, slack=slack)
        assert_close(got[i], want, slack=slack * 10)


def test_nan_stays_in_its_sequence(backend, rng, real):
    layer, _, _ = some_layer(rng, "additive with bias", real)
    x = draw(rng, (9, 5), real)
    clean = layer(x, cu_seqlens=[0, 3, 6, 9], return_weights=True)
    x[4, 2] = np.nan
    got, alpha = layer(x, cu_seqlens=[0, 3, 6, 9], return_weights=True)
    assert np.isnan(got[1]).all() and np.isnan(alpha[3:6]).all()
    assert_bits_equal(got[[0, 2]], clean[0][[0, 2]])
    assert_bits_equal(alpha[[0, 1, 2, 6, 7, 8]], clean[1][[0, 1, 2, 6, 7, 8]])


def test_final_tanh(backend, rng, dtype):
    layer, weights, _ = some_layer(rng, "dot", dtype)
    bent = AttentionPooling(**weights, final_tanh=True)
    x = draw(rng, (2, 4, 5), dtype)
    want = np.tanh(layer(x, lengths=[4, 0]).astype(float))
    assert_close(bent(x, lengths=[4, 0]), want)
    assert not bent(x, lengths=[4, 0])[1].any()
    assert_close(bent(x.reshape(8, 5), cu_seqlens=[0, 4, 4]), want)


def test_no_token_has_weight_but_its_sequences(backend, rng):
    """Thousands of short sequences: no array of sequences times tokens."""
    layer, _, _ = some_layer(rng, "additive", F)
    lengths = rng.integers(0, 5, 5000)
    cu = np.concatenate([[0], np.cumsum(lengths)])
    _, alpha = layer(draw(rng, (cu[-1], 5)), cu_seqlens=cu, return_weights=True)
    sums = np.bincount(np.repeat(np.arange(5000), lengths), alpha, 5000)
    assert_close(sums, (lengths > 0).astype(float), dtype=F)


def test_a_layer_keeps_its_own_weights(backend, rng, dtype):
    for form in FORMS:
        layer, weights, size = some_layer(rng, form, dtype)
        x, query = draw(rng, (4, 5), dtype), None
        if form.startswith("given"):
            query = draw(rng, size, dtype)
        want = layer(x, query)
        for weight in weights.values():
            weight[...] = 7
        assert_bits_equal(layer(x, query), want)
        again = pickle.loads(pickle.dumps(layer))
        assert_bits_equal(again(x, query), want)
        assert repr(again) == repr(layer) and "\n" not in repr(layer)
        assert layer.dtype == (dtype if weights else None)
    assert repr(some_layer(rng, "additive", F)[0]) == (
        "AttentionPooling(score='additive', dim=5, units=7)"
    )


def ones(*shape, dtype=F):
    return np.ones(shape, dtype)


MAKING = [
    ({"score": "cosine"}, ValueError, "score"),
    ({"score": 1}, TypeError, "score"),
    ({"score": "dot", "bias": ones(3)}, ValueError, "bias"),
    ({"score": "additive", "query": ones(3)}, ValueError, "weight"),
    ({"score": "additive", "weight": ones(5, 3)}, ValueError, "query"),
    ({"score": "additive", "weight": ones(5, 3), "query": ones(4)}, ValueError, "query"),
    ({"weight": ones(5, 3), "query": ones(5)}, ValueError, "query"),
    ({"weight": ones(5), "query": ones(5)}, ValueError, "weight"),
    ({"weight": ones(5, 3), "query": ones(3, dtype=float)}, TypeError, "weight|query"),
    ({"query": ones(3, dtype=int)}, TypeError, "query"),
    ({"query": ones(3), "final_tanh": 2}, TypeError, "final_tanh"),
]


@pytest.mark.parametrize(("weights", "error", "name"), MAKING)
def test_wrong_weights(weights, error, name):
    with pytest.raises(error, match=rf"^({name}): expected"):
        AttentionPooling(**weights)


CALLS = [
    ({"x": ones(2, 4, 6)}, ValueError, "x"),
    ({"x": ones(5)}, ValueError, "x"),
    ({"x": ones(2, 4, 5, dtype=float)}, TypeError, "x"),
    ({"query": ones(2, 5)}, ValueError, "query"),
    ({"lengths": [4, 5]}, ValueError, "lengths"),
    ({"lengths": [-1, 4]}, ValueError, "lengths"),
    ({"lengths": [1, 2, 3]}, ValueError, "lengths"),
    ({"lengths": [1.0, 2.0]}, TypeError, "lengths"),
    ({"mask": ones(2, 4)}, TypeError, "mask"),
    ({"mask": ones(2, 5, dtype=bool)}, ValueError, "mask"),
    ({"return_weights": "yes"}, TypeError, "return_weights"),
    ({"cu_seqlens": [0, 4]}, ValueError, "x"),
    ({"x": ones(4, 5), "cu_seqlens": [0, 5]}, ValueError, "cu_seqlens"),
    ({"x": ones(4, 5), "cu_seqlens": [1, 4]}, ValueError, "cu_seqlens"),
    ({"x": ones(4, 5), "cu_seqlens": [0, 4], "lengths": 3}, ValueError, "lengths"),
    ({"x": ones(4, 5), "cu_seqlens": [0, 4], "mask": ones(4, dtype=bool)}, ValueError, "mask"),
]


@pytest.mark.parametrize(("wrong", "error", "name"), CALLS)
def test_wrong_calls(wrong, error, name):
    layer = AttentionPooling(query=ones(5))
    with pytest.raises(error, match=rf"^{re.escape(name)}: expected"):
        layer(**{"x": ones(2, 4, 5)} | wrong)


def test_queries_at_the_call():
    """Where they are needed, and where they are not."""
    layer = AttentionPooling(weight=ones(5, 3))
    for query, error in ((None, ValueError), (ones(2, 4), ValueError), (ones(3), ValueError)):
        with pytest.raises(error, match="^query: expected"):
            layer(ones(2, 4, 5), query)
    with pytest.raises(TypeError, match="^query: expected"):
        layer(ones(2, 4, 5), ones(2, 3, dtype=float))
    additive = AttentionPooling(score="additive", weight=ones(5, 3), query=ones(3))
    with pytest.raises(ValueError, match="^query: expected.*BahdanauAttention"):
        additive(ones(2, 4, 5), ones(2, 3))
    with pytest.raises(TypeError, match="^x: expected"):
        AttentionPooling()(np.ones((4, 5), int), ones(5))


def test_threads_change_no_bit(backend, rng):
    layer, _, _ = some_layer(rng, "additive", F, 33, 40)
    x = draw(rng, (500, 33))
    cu = [0, 3, 3, 300, 301, 500]
    with fastattn.threads(1):
        want = layer(x, cu_seqlens=cu)
    with fastattn.threads(4):
        assert_bits_equal(layer(x, cu_seqlens=cu), want)


@pytest.mark.parametrize(
    "module",
    ["abcnn", "attention_over_attention", "attention_pooling", "attentive_pooling", "hierarchical"],
)
def test_docstrings(backend, module):
    failed, attempted = doctest.testmod(importlib.import_module(f"fastattn.layers.{module}"))
    assert attempted and not failed
