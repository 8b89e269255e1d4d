# SPDX-License-Identifier: MIT
# AttentivePooling against its formula: padding on both sides, empty texts, weights, errors.
# Used by the suite, on every backend.
# The search for the best partner is tested in test_hard*.py.
"""Each text pooled by how well its tokens find a partner in the other one."""

import pickle
import tracemalloc

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw

from fastattn.layers import AttentivePooling

F = np.float32


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def pooled(x, y, weight):
    """The formula for two texts without padding: (pooled x, pooled y, weights x, weights y)."""
    x, y, weight = (a.astype(float) for a in (x, y, weight))
    if len(x) == 0 or len(y) == 0:
        return (*(np.zeros(a.shape[1]) for a in (x, y)), *(np.zeros(len(a)) for a in (x, y)))
    g = np.tanh(x @ weight @ y.T)
    w_x, w_y = softmax(g.max(axis=1)), softmax(g.max(axis=0))
    return w_x @ x, w_y @ y, w_x, w_y


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_the_formula(backend, rng, dtype, lead):
    """Any leading axes; what is padding may be NaN, and has weight 0."""
    weight = draw(rng, (4, 5), dtype, 0.3)
    layer = AttentivePooling(weight=weight)
    x, y = draw(rng, (*lead, 9, 4), dtype), draw(rng, (*lead, 7, 5), dtype)
    x_lengths, y_lengths = rng.integers(0, 10, lead), rng.integers(0, 8, lead)
    for lengths in (
        {},
        {"x_lengths": x_lengths},
        {"x_lengths": x_lengths, "y_lengths": y_lengths},
        {"x_lengths": 5, "y_lengths": 2},
    ):
        n_x = np.broadcast_to(lengths.get("x_lengths", 9), lead)
        n_y = np.broadcast_to(lengths.get("y_lengths", 7), lead)
        dirty_x, dirty_y = x.copy(), y.copy()
        for i in np.ndindex(lead):
            dirty_x[i][n_x[i] :], dirty_y[i][n_y[i] :] = np.nan, np.nan
        got = layer(dirty_x, dirty_y, return_weights=True, **lengths)
        assert all(a.dtype == dtype for a in got)
        for a, b in zip(layer(dirty_x, dirty_y, **lengths), got[:2]):
            assert_bits_equal(a, b)
        for i in np.ndindex(lead):
            want = pooled(x[i][: n_x[i]], y[i][: n_y[i]], weight)
            slack = 0 if dtype == np.float64 else 1e-5
            for a, b in zip(got[:2], want[:2]):
                assert_close(a[i], b, slack=slack)
            for a, b, n in zip(got[2:], want[2:], (n_x[i], n_y[i])):
                assert_close(a[i][:n], b, slack=slack)
                assert not a[i][n:].any()


def test_long_texts_and_large_scores(backend, rng, real):
    """Over several tiles; products so large that every tanh is 1."""
    weight = draw(rng, (33, 20), real, 0.02)
    x, y = draw(rng, (600, 33), real), draw(rng, (90, 20), real)
    for size in (1, 1e4):
        layer = AttentivePooling(weight=weight * real.type(size))
        slack = 1e-5 if real == F else 0
        for a, b in zip(layer(x, y, return_weights=True), pooled(x, y, weight * real.type(size))):
            assert_close(a, b, slack=slack)


def test_empty_axes(backend, dtype):
    layer = AttentivePooling(weight=np.ones((4, 5), dtype))
    for n_x, n_y in ((0, 3), (3, 0), (0, 0)):
        got = layer(np.ones((2, n_x, 4), dtype), np.ones((2, n_y, 5), dtype), return_weights=True)
        assert [a.shape for a in got] == [(2, 4), (2, 5), (2, n_x), (2, n_y)]
        assert not any(a.any() for a in got)


def test_no_matrix_in_memory(rng):
    layer = AttentivePooling(weight=np.eye(8, dtype=F))
    x, y = draw(rng, (3000, 8)), draw(rng, (2000, 8))
    layer(x, y)
    tracemalloc.start()
    layer(x, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 2000 * 4 / 2


def test_a_layer_keeps_its_own_weight(backend, rng, dtype):
    weight = draw(rng, (4, 5), dtype)
    layer = AttentivePooling(weight=weight)
    x, y = draw(rng, (6, 4), dtype), draw(rng, (3, 5), dtype)
    want = layer(x, y)
    weight[...] = 7
    for same in (layer, pickle.loads(pickle.dumps(layer))):
        for a, b in zip(same(x, y), want):
            assert_bits_equal(a, b)
    assert repr(layer) == "AttentivePooling(x_dim=4, y_dim=5)" and layer.dtype == dtype


@pytest.mark.parametrize(
    ("wrong", "error", "name"),
    [
        ({"x": np.ones((2, 6, 5), F)}, ValueError, "x"),
        ({"y": np.ones((2, 6, 4), F)}, ValueError, "y"),
        ({"y": np.ones((3, 6, 5), F)}, ValueError, "y"),
        ({"y": np.ones((6, 5), F)}, ValueError, "y"),
        ({"x": np.ones(4, F)}, ValueError, "x"),
        ({"x": np.ones((2, 6, 4))}, TypeError, "x"),
        ({"y": np.ones((2, 7, 5))}, TypeError, "y"),
        ({"x_lengths": 7}, ValueError, "x_lengths"),
        ({"y_lengths": [1, -1]}, ValueError, "y_lengths"),
        ({"y_lengths": "all"}, TypeError, "y_lengths"),
        ({"return_weights": None}, TypeError, "return_weights"),
    ],
)
def test_errors(wrong, error, name):
    layer = AttentivePooling(weight=np.ones((4, 5), F))
    right = {"x": np.ones((2, 6, 4), F), "y": np.ones((2, 7, 5), F)}
    with pytest.raises(error, match=f"^{name}: expected"):
        layer(**right | wrong)
    for weight in (np.ones(4, F), None):
        with pytest.raises(ValueError, match="^weight: expected"):
            AttentivePooling(weight=weight)
    with pytest.raises(TypeError, match="^weight: expected"):
        AttentivePooling(weight=np.ones((4, 5), int))
