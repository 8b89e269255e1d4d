# SPDX-License-Identifier: MIT
# AttentionOverAttention, AttentivePooling, match_matrix, ABCNN1, ABCNN2: two texts, one match.
# Used by the suite, on every backend.
# Dtypes, axes and wrong inputs of all layers are in test_layers.py.
"""What two sequences of different lengths make of their scores with each other."""

import numpy as np
import pytest
from check import SCORE_ERROR, assert_bits_equal, draw
from check_layers import assert_layer, poisoned
from check_pooling import (
    abcnn1,
    abcnn2,
    attention_over_attention,
    attentive_pooling,
    match_matrix,
)
from layer_cases import CASES, drawn

from fastattn import layers

X_LENGTHS, Y_LENGTHS = np.array([5, 2, 0, 3]), np.array([7, 1, 3, 0])
LENGTHS = {"x_lengths": X_LENGTHS, "y_lengths": Y_LENGTHS}
SIDES = [{}, {"x_lengths": X_LENGTHS}, {"y_lengths": Y_LENGTHS}, LENGTHS, {"x_lengths": 4}]


@pytest.fixture
def texts(rng, real):
    """x (4, 5, 6) and y (4, 7, 6)."""
    return draw(rng, (4, 5, 6), real), draw(rng, (4, 7, 6), real)


def named(sides):
    return {{"x_lengths": "document_lengths", "y_lengths": "query_lengths"}[n]: x
            for n, x in sides.items()}  # fmt: skip


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_attention_over_attention(backend, rng, real, texts, size):
    """A distribution over the document: 0 for padding, all of it where there is a text."""
    x, y = texts[0] * real.type(size), texts[1]
    layer = layers.AttentionOverAttention()
    slack = SCORE_ERROR[real.name] * abs(x @ y.swapaxes(1, 2)).max()
    for sides in SIDES:
        out = layer(x, y, **named(sides))
        wanted = attention_over_attention({}, x, y, **named(sides))
        assert_layer(out, wanted, real, str(sides), slack)
        assert not out[wanted == 0].any(), "padding has a part"
    is_real = (X_LENGTHS > 0) & (Y_LENGTHS > 0)
    sums = layer(x, y, **named(LENGTHS)).sum(axis=-1)
    assert abs(sums - is_real).max() < 1e-4


def test_attention_over_attention_of_equal_words(backend):
    """Nothing to choose from: each word of the document has an equal part."""
    out = layers.AttentionOverAttention()(np.ones((5, 4)), np.ones((3, 4)))
    assert_layer(out, np.full(5, 0.2), np.float64)


def test_attentive_pooling(backend, rng, real, texts):
    """Each row's best partner, tanh, softmax over the rows that are real."""
    x, y = texts[0], draw(rng, (4, 7, 8), real)
    weights = drawn(rng, real, weight=(6, 8))
    layer = layers.AttentivePooling(**weights)
    for sides in SIDES:
        got = layer(x, y, **sides, return_weights=True)
        assert_layer(got, attentive_pooling(weights, x, y, **sides), real, str(sides))
        for one, other in zip(layer(x, y, **sides), got):
            assert_bits_equal(one, other)


def test_attentive_pooling_of_bad_partners(backend, rng):
    """All matches are negative, so a maximum must not start at 0, nor padding be one of 0."""
    x, y = abs(draw(rng, (4, 5, 6), np.float64)), -abs(draw(rng, (4, 7, 6), np.float64))
    weights = {"weight": np.eye(6) * 0.1}
    got = layers.AttentivePooling(**weights)(x, y, **LENGTHS, return_weights=True)
    assert_layer(got, attentive_pooling(weights, x, y, **LENGTHS), np.float64)


def test_match_matrix(backend, real, texts):
    """1 / (1 + |x - y|), and 0 where either is padding."""
    for sides in SIDES:
        got = layers.match_matrix(*texts, **sides)
        assert_layer(got, match_matrix({}, *texts, **sides), real, str(sides))


def test_match_matrix_of_near_neighbours(backend, rng):
    """Distances far below the lengths of the vectors: not by |x|^2 + |y|^2 - 2 x.y."""
    y = draw(rng, (7, 6), size=100.0)
    x = y[:5] + draw(rng, (5, 6), size=1e-2)
    got = layers.match_matrix(x, y)
    assert_layer(got, match_matrix({}, x, y), np.float32)
    assert (np.diagonal(got) > 0.9).all()
    assert (np.diagonal(layers.match_matrix(y, y)) == 1).all()


def test_match_matrix_of_large_numbers(backend):
    """Squares may overflow or vanish: no warning, no NaN."""
    x = np.array([[3e30, 0.0], [0.0, 0.0]], np.float32)
    y = np.array([[0.0, 4e30], [1e-30, 0.0]], np.float32)
    wanted = match_matrix({}, x, y)
    assert_layer(layers.match_matrix(x, y), wanted, np.float32)


def test_abcnn1(backend, rng, real, texts):
    """Feature maps to stack with the texts as channels; rows of padding are 0."""
    weights = drawn(rng, real, x_weight=(7, 6), y_weight=(5, 6))
    layer = layers.ABCNN1(**weights)
    for sides in SIDES:
        got = layer(*texts, **sides)
        assert_layer(got, abcnn1(weights, *texts, **sides), real, str(sides))
    maps_x, maps_y = layer(*texts, **LENGTHS)
    assert not maps_x[1, 2:].any() and not maps_y[1, 1:].any()


@pytest.mark.parametrize("width", [1, 2, 5])
def test_abcnn2(backend, real, texts, width):
    """Windows of `width` items, each times the sum of its row or column of matches."""
    layer = layers.ABCNN2(width=width)
    for sides in SIDES:
        got = layer(*texts, **sides)
        assert_layer(got, abcnn2({"width": width}, *texts, **sides), real, str(sides))
    pooled, _ = layer(texts[0][:, : width - 1], texts[1])
    assert pooled.shape == (4, 0, 6), "a text with no window"


def test_padding_may_be_anything(backend, dtype, rng):
    """NaN past both lengths, in every layer of two texts."""
    x, y = draw(rng, (4, 5, 6), dtype), draw(rng, (4, 7, 6), dtype)
    bad = poisoned(x, X_LENGTHS), poisoned(y, Y_LENGTHS)
    weights = drawn(rng, dtype, weight=(6, 6))
    got = layers.AttentivePooling(**weights)(*bad, **LENGTHS, return_weights=True)
    assert_layer(got, attentive_pooling(weights, x, y, **LENGTHS), dtype)
    got = layers.AttentionOverAttention()(*bad, **named(LENGTHS))
    assert_layer(got, attention_over_attention({}, x, y, **named(LENGTHS)), dtype)
    assert_layer(layers.match_matrix(*bad, **LENGTHS), match_matrix({}, x, y, **LENGTHS), dtype)
    weights = drawn(rng, dtype, x_weight=(7, 6), y_weight=(5, 6))
    got = layers.ABCNN1(**weights)(*bad, **LENGTHS)
    assert_layer(got, abcnn1(weights, x, y, **LENGTHS), dtype)
    got = layers.ABCNN2(width=2)(*bad, **LENGTHS)
    assert_layer(got, abcnn2({"width": 2}, x, y, **LENGTHS), dtype)


def test_long_texts(backend, rng):
    """Lengths beyond every block in which pairs are compared, most of one side padding."""
    x, y = draw(rng, (2, 700, 6), np.float64), draw(rng, (2, 1100, 6), np.float64)
    sides = {"x_lengths": np.array([700, 3]), "y_lengths": np.array([1037, 1100])}
    weights = drawn(rng, np.float64, weight=(6, 6))
    got = layers.AttentivePooling(**weights)(x, y, **sides, return_weights=True)
    assert_layer(got, attentive_pooling(weights, x, y, **sides), np.float64)
    got = layers.AttentionOverAttention()(x, y, **named(sides))
    assert_layer(got, attention_over_attention({}, x, y, **named(sides)), np.float64)
    weights = drawn(rng, np.float64, x_weight=(1100, 6), y_weight=(700, 6))
    got = layers.ABCNN1(**weights)(x, y, **sides)
    assert_layer(got, abcnn1(weights, x, y, **sides), np.float64)
    got = layers.ABCNN2(width=4)(x, y, **sides)
    assert_layer(got, abcnn2({"width": 4}, x, y, **sides), np.float64)


@pytest.mark.parametrize("name", ["attention over attention", "attentive pooling", "match matrix"])
def test_sizes_of_zero(backend, rng, name):
    """A text without words on one side, or on both."""
    case = CASES[name](rng, np.float64)
    layer = case.layer()
    first, second = [n for n in case.inputs if not n.endswith("_lengths")]
    for x_size, y_size in ((0, 7), (5, 0), (0, 0)):
        inputs = {first: case.inputs[first][:, :x_size], second: case.inputs[second][:, :y_size]}
        inputs = {n: np.nan_to_num(x) for n, x in inputs.items()}
        assert_layer(case.call(layer, inputs), case.wanted(inputs), np.float64)


def test_wrong_calls(rng):
    """The message begins with the argument's name."""
    x, y = draw(rng, (4, 5, 6)), draw(rng, (4, 7, 6))
    reader = layers.AttentionOverAttention()
    pool = layers.AttentivePooling(**drawn(rng, np.float32, weight=(6, 8)))
    maps = layers.ABCNN1(**drawn(rng, np.float32, x_weight=(7, 6), y_weight=(5, 6)))
    windows = layers.ABCNN2(width=3)
    for call, error, argument in [
        (lambda: reader(x, y[..., :5]), ValueError, "document|query"),
        (lambda: reader(x[:3], y), ValueError, "document|query"),
        (lambda: reader(x, y, query_lengths=8), ValueError, "query_lengths"),
        (lambda: pool(x, y), ValueError, "y"),
        (lambda: pool(x[..., :5], y), ValueError, "x"),
        (lambda: layers.match_matrix(x, y[..., :5]), ValueError, "x|y"),
        (lambda: layers.match_matrix(x[:3], y), ValueError, "x|y"),
        (lambda: layers.match_matrix(x, y, x_lengths=6), ValueError, "x_lengths"),
        (lambda: maps(x[:, :4], y), ValueError, "x|y_weight"),
        (lambda: maps(x, y[:, :6]), ValueError, "y|x_weight"),
        (lambda: maps(x[..., :5], y[..., :5]), ValueError, "x|y"),
        (lambda: windows(x, y[..., :5]), ValueError, "x|y"),
        (lambda: windows(x, y, y_lengths=[1, 2]), ValueError, "y_lengths"),
        (lambda: layers.ABCNN2(width=0), ValueError, "width"),
        (lambda: layers.ABCNN2(width=2.0), TypeError, "width"),
    ]:
        with pytest.raises(error, match=rf"^({argument})\b"):
            call()
