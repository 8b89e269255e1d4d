# SPDX-License-Identifier: MIT
# match_matrix, ABCNN1 and ABCNN2 against their formulas: padding, close vectors, errors.
# Used by the suite; nothing of it is compiled.
# The convolution between them is the user's.
"""Tokens of two texts matched by their distance, before and after a convolution."""

import pickle

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw

from fastattn.layers import ABCNN1, ABCNN2, match_matrix

F = np.float32
LEADS = pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)


def matches(x, y, n_x, n_y):
    """The formula for one pair of texts, of which so many tokens are real."""
    x, y = x.astype(np.longdouble), y.astype(np.longdouble)
    apart = np.sqrt(((x[:, None] - y) ** 2).sum(axis=-1))
    a = 1 / (1 + apart)
    a[n_x:], a[:, n_y:] = 0, 0
    return a.astype(float)


def some_texts(rng, dtype, lead, n_x=9, n_y=7, dim=4):
    """x, y, both with NaN for padding, and how much of them is real."""
    x, y = draw(rng, (*lead, n_x, dim), dtype), draw(rng, (*lead, n_y, dim), dtype)
    lengths = {
        "x_lengths": rng.integers(0, n_x + 1, lead),
        "y_lengths": rng.integers(0, n_y + 1, lead),
    }
    dirty = x.copy(), y.copy()
    for text, n in zip(dirty, lengths.values()):
        for i in np.ndindex(lead):
            text[i][n[i] :] = np.nan
    return x, y, dirty, lengths


@LEADS
def test_match_matrix(rng, dtype, lead):
    x, y, dirty, lengths = some_texts(rng, dtype, lead)
    whole = match_matrix(x, y)
    part = match_matrix(*dirty, **lengths)
    assert whole.shape == part.shape == (*lead, 9, 7) and whole.dtype == part.dtype == dtype
    for i in np.ndindex(lead):
        assert_close(whole[i], matches(x[i], y[i], 9, 7))
        n = (lengths["x_lengths"][i], lengths["y_lengths"][i])
        assert_close(part[i], matches(x[i], y[i], *n))
        assert not part[i][n[0] :].any() and not part[i][:, n[1] :].any()


def test_vectors_that_are_close(rng, real):
    """Far from the origin, equal or nearly so: their distance keeps its digits."""
    x = draw(rng, (400, 30), real) + real.type(1e4)
    y = x[:200] + draw(rng, (200, 30), real, 1e-2)
    y[7] = x[7]
    got = match_matrix(x, y)
    assert got[7, 7] == 1
    assert_close(got, matches(x, y, 400, 200))


@LEADS
def test_abcnn1(rng, dtype, lead):
    """Feature maps of both texts; rows of padding are 0."""
    x, y, dirty, lengths = some_texts(rng, dtype, lead)
    weights = draw(rng, (7, 4), dtype), draw(rng, (9, 4), dtype)
    layer = ABCNN1(x_weight=weights[0], y_weight=weights[1])
    got = layer(*dirty, **lengths)
    assert [a.shape for a in got] == [(*lead, 9, 4), (*lead, 7, 4)]
    assert all(a.dtype == dtype for a in got)
    slack = 0 if dtype == np.float64 else 1e-5
    for i in np.ndindex(lead):
        n_x, n_y = lengths["x_lengths"][i], lengths["y_lengths"][i]
        a = matches(x[i], y[i], n_x, n_y)
        assert_close(got[0][i], a @ weights[0].astype(float), slack=slack)
        assert_close(got[1][i], a.T @ weights[1].astype(float), slack=slack)
        assert not got[0][i][n_x:].any() and not got[1][i][n_y:].any()


@LEADS
@pytest.mark.parametrize("width", [1, 3, 7])
def test_abcnn2(rng, dtype, lead, width):
    """Windows of the tokens, weighted with what they match in all."""
    x, y, dirty, lengths = some_texts(rng, dtype, lead)
    got = ABCNN2(width=width)(*dirty, **lengths)
    assert [a.shape for a in got] == [(*lead, 10 - width, 4), (*lead, 8 - width, 4)]
    assert all(a.dtype == dtype for a in got)
    for i in np.ndindex(lead):
        a = matches(x[i], y[i], lengths["x_lengths"][i], lengths["y_lengths"][i])
        for text, sums, pooled in ((x[i], a.sum(axis=1), got[0]), (y[i], a.sum(axis=0), got[1])):
            weighted = sums[:, None] * text.astype(float)
            n = len(text) - width + 1
            want = np.array([weighted[t : t + width].sum(axis=0) for t in range(n)])
            assert_close(pooled[i], want, slack=0 if dtype == np.float64 else 1e-5, size=10)


def test_long_texts(rng):
    """In several blocks of rows."""
    x, y = draw(rng, (500, 40)), draw(rng, (90, 40))
    layer = ABCNN1(x_weight=draw(rng, (90, 40)), y_weight=draw(rng, (500, 40)))
    a = matches(x, y, 500, 90)
    assert_close(layer(x, y)[1], a.T @ layer._y_weight.astype(float), slack=2e-5)
    assert_close(ABCNN2(width=1)(x, y)[1], a.sum(axis=0)[:, None] * y, slack=2e-5)


def test_they_are_layers(rng, dtype):
    weights = draw(rng, (7, 4), dtype), draw(rng, (9, 4), dtype)
    layer = ABCNN1(x_weight=weights[0], y_weight=weights[1])
    x, y = draw(rng, (9, 4), dtype), draw(rng, (7, 4), dtype)
    want = layer(x, y)
    weights[0][...] = 7
    for same in (layer, pickle.loads(pickle.dumps(layer))):
        for a, b in zip(same(x, y), want):
            assert_bits_equal(a, b)
    assert repr(layer) == "ABCNN1(x_length=9, y_length=7, dim=4)" and layer.dtype == dtype
    assert repr(pickle.loads(pickle.dumps(ABCNN2(width=3)))) == "ABCNN2(width=3)"


def ones(*shape, dtype=F):
    return np.ones(shape, dtype)


TEXTS = [
    ({"x": ones(2, 9, 5)}, ValueError, "x|y"),
    ({"y": ones(3, 7, 4)}, ValueError, "y"),
    ({"y": ones(2, 7, 4, dtype=float)}, TypeError, "y"),
    ({"x": ones(2, 9, 4, dtype=int)}, TypeError, "x"),
    ({"x": ones(4)}, ValueError, "x"),
    ({"x_lengths": 10}, ValueError, "x_lengths"),
    ({"y_lengths": [1, 2, 3]}, ValueError, "y_lengths"),
]


@pytest.mark.parametrize(("wrong", "error", "name"), TEXTS)
def test_wrong_texts(wrong, error, name):
    right = {"x": ones(2, 9, 4), "y": ones(2, 7, 4)}
    layer = ABCNN1(x_weight=ones(7, 4), y_weight=ones(9, 4))
    for call in (match_matrix, layer, ABCNN2(width=3)):
        with pytest.raises(error, match=rf"^({name}): expected"):
            call(**right | wrong)


def test_wrong_layers_and_lengths():
    layer = ABCNN1(x_weight=ones(7, 4), y_weight=ones(9, 4))
    with pytest.raises(ValueError, match="^x: expected length 9"):
        layer(ones(8, 4), ones(7, 4))
    with pytest.raises(ValueError, match="^y: expected length 7"):
        layer(ones(9, 4), ones(8, 4))
    with pytest.raises(ValueError, match="^y_weight: expected"):
        ABCNN1(x_weight=ones(7, 4), y_weight=ones(9, 5))
    with pytest.raises(ValueError, match="^x_weight: expected"):
        ABCNN1(x_weight=None, y_weight=ones(9, 5))
    with pytest.raises(TypeError, match="^y_weight: expected"):
        ABCNN1(x_weight=ones(7, 4), y_weight=ones(9, 4, dtype=float))
    for width, error in ((0, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="^width: expected"):
            ABCNN2(width=width)
    with pytest.raises(ValueError, match="^y: expected a length"):
        ABCNN2(width=5)(ones(9, 4), ones(3, 4))
