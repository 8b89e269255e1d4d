# SPDX-License-Identifier: MIT
# LuongAttention: its four scores, global and local, and the attentional state.
# Used by the suite, on every backend.
# Dtypes, axes and wrong inputs of all layers are in test_layers.py.
"""Luong's attention: what is scored, where a query looks, and what becomes of the context."""

import tracemalloc

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer, luong, poisoned
from layer_cases import drawn

from fastattn import layers

SCORES = ["dot", "general", "concat", "location"]
MODES = ["global", "local-m", "local-p"]
LENGTHS = np.array([11, 4, 0])


def made(rng, dtype, score, mode="global", half_width=2, combine=False):
    """(weights, query, memory): 3 entries, 4 queries, 11 keys; no two sizes are equal."""
    key_dim = 7 if score == "dot" else 8
    shapes = {
        "dot": {},
        "general": {"weight": (7, key_dim)},
        "concat": {"weight": (7 + key_dim, 9), "attention_v": 9},
        "location": {"weight": (7, 13)},
    }[score]
    if mode == "local-p":
        shapes |= {"position_weight": (7, 10), "position_v": 10}
    if combine:
        shapes |= {"combine_weight": (key_dim + 7, 12)}
    weights = {"score": score, "mode": mode} | drawn(rng, dtype, **shapes)
    if mode != "global":
        weights["half_width"] = half_width
    if not shapes:
        weights["dtype"] = np.dtype(dtype)
    return weights, draw(rng, (3, 4, 7), dtype), draw(rng, (3, 11, key_dim), dtype)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", MODES)
def test_formula(backend, rng, real, score, mode):
    """Each score in each mode, with lengths and masks: local-p's places follow the lengths."""
    for lengths in (None, 7, LENGTHS):
        weights, query, memory = made(rng, real, score, mode, combine=lengths is None)
        layer = layers.LuongAttention(**weights)
        mask = rng.random((3, 1, 11)) < 0.7
        options = {"memory_lengths": lengths, "attn_mask": mask}
        wanted = luong(weights, query, memory, **options)
        got = layer(query, memory, **options, return_weights=True)
        assert_layer(got, wanted, real, str(lengths))
        assert not got[1][wanted[1] == 0].any(), "a hidden key has weight"
        assert_bits_equal(layer(query, memory, **options), got[0])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", MODES)
def test_steps_are_rows_of_the_sequence(backend, rng, score, mode):
    """A decoder's step i, at position i, is row i of the call with all its queries."""
    weights, query, memory = made(rng, np.float64, score, mode, combine=True)
    layer = layers.LuongAttention(**weights)
    options = {"memory_lengths": LENGTHS, "return_weights": True}
    mask = rng.random((3, 4, 11)) < 0.8
    wanted = luong(weights, query, memory, memory_lengths=LENGTHS, attn_mask=mask)
    for i in range(4):
        at = {"position": i} if mode == "local-m" else {}
        step = layer(query[:, i], memory, **options, attn_mask=mask[:, i], **at)
        assert_layer(step, tuple(x[:, i] for x in wanted), np.float64, f"step {i}")


def test_dot_needs_no_weights(backend, rng):
    """The dtype is then float32, or the one that is given by name."""
    assert layers.LuongAttention().dtype == np.float32
    assert layers.LuongAttention(dtype="float64").dtype == np.float64
    query, memory = draw(rng, (4, 7)), draw(rng, (5, 7))
    wanted = luong({}, query, memory)
    assert_layer(layers.LuongAttention()(query, memory, return_weights=True), wanted, np.float32)


@pytest.mark.parametrize("half_width", [0, 1, 20])
@pytest.mark.parametrize("position", [0, 3, 9, 11, 40, [0, 5, 12]], ids=str)
def test_monotonic_windows(backend, rng, half_width, position):
    """[p - half_width, p + half_width], p from `position` on, clipped to the sequence.

    Past its end the window is empty, and the context is zero."""
    weights, query, memory = made(rng, np.float32, "dot", "local-m", half_width)
    layer = layers.LuongAttention(**weights)
    wanted = luong(weights, query, memory, position=position)
    got = layer(query, memory, position=position, return_weights=True)
    assert_layer(got, wanted, np.float32)
    if half_width == 0 and position == 3:
        assert_bits_equal(got[0], memory[:, 3:7])


def test_predicted_windows_are_not_renormalized(backend, rng):
    """Weights are those of the softmax in the window times a Gaussian: they sum to less than 1."""
    weights, query, memory = made(rng, np.float64, "general", "local-p", 3)
    layer = layers.LuongAttention(**weights)
    out, alpha = layer(query, memory, return_weights=True)
    assert (alpha.sum(axis=-1) < 1).all() and (alpha.sum(axis=-1) > 0.1).all()
    assert_layer(out, alpha @ memory, np.float64)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", ["local-m", "local-p"])
def test_keys_outside_of_the_window_are_never_used(backend, rng, score, mode):
    """They may be NaN, and so may what lies past the length."""
    weights, query, memory = made(rng, np.float32, score, mode, 1)
    layer = layers.LuongAttention(**weights)
    options = {"memory_lengths": [11, 6, 0]} | ({"position": 2} if mode == "local-m" else {})
    seen = luong(weights, query, memory, **options)[1] > 0
    assert not seen.any(axis=1).all()
    hidden = np.where(seen.any(axis=1)[..., None], memory, np.float32(np.nan))
    got = layer(query, hidden, **options, return_weights=True)
    wanted = layer(query, memory, **options, return_weights=True)
    for one, other in zip(got, wanted):
        assert_bits_equal(one, other)


@pytest.mark.parametrize("score", ["dot", "general"])
@pytest.mark.parametrize("mode", ["local-m", "local-p"])
def test_cost_does_not_grow_with_the_keys(backend, rng, score, mode):
    """A quarter of a million keys, which one row stands for: no array of so many is made."""
    weights, query, memory = made(rng, np.float32, score, mode, 3, combine=True)
    layer = layers.LuongAttention(**weights)
    many = np.broadcast_to(memory[:, :1], (3, 1 << 18, memory.shape[-1]))
    layer(query, many)
    tracemalloc.start()
    try:
        out = layer(query, many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.isfinite(out).all()
    assert peak < 1 << 20, f"{peak} bytes"


@pytest.mark.parametrize("score", SCORES)
def test_hidden_memory(backend, rng, dtype, score):
    """What lies past the lengths may be NaN, in all entries and both forms."""
    weights, query, memory = made(rng, dtype, score)
    layer = layers.LuongAttention(**weights)
    wanted = luong(weights, query, memory, memory_lengths=LENGTHS)
    hidden = poisoned(memory, LENGTHS)
    got = layer(query, hidden, memory_lengths=LENGTHS, return_weights=True)
    assert_layer(got, wanted, dtype)
    got = layer(query[:, 1], hidden, memory_lengths=LENGTHS, return_weights=True)
    assert_layer(got, tuple(x[:, 1] for x in wanted), dtype)


def test_state_of_a_row_that_sees_nothing(backend, rng):
    """The context is zero, the attentional state that of the query alone."""
    weights, query, memory = made(rng, np.float32, "general", combine=True)
    layer = layers.LuongAttention(**weights)
    out = layer(query, memory, memory_lengths=0)
    wanted = np.tanh(query.astype(np.float64) @ weights["combine_weight"][8:])
    assert_layer(out, wanted, np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("score", SCORES)
def test_sizes_of_zero(backend, rng, score, mode):
    weights, query, memory = made(rng, np.float32, score, mode, combine=True)
    layer = layers.LuongAttention(**weights)
    for q, k in ((query[:, :0], memory), (query, memory[:, :0]), (query[:0], memory[:0])):
        assert_layer(layer(q, k, return_weights=True), luong(weights, q, k), np.float32)


def test_wrong_layers(rng):
    """The argument that a score or mode lacks, or cannot take, is named first."""
    f = np.float32
    concat = {n: x for n, x in made(rng, f, "concat")[0].items() if n != "mode"}
    places = {"position_weight": np.ones((7, 10), f), "position_v": np.ones(10, f)}
    for changes, error, argument in [
        ({"score": "cosine"}, ValueError, "score"),
        ({"score": None}, (TypeError, ValueError), "score"),
        ({"mode": "local"}, ValueError, "mode"),
        ({"score": "general"}, ValueError, "weight"),
        ({"score": "location"}, ValueError, "weight"),
        ({"score": "concat", "weight": concat["weight"]}, ValueError, "attention_v"),
        (concat | {"attention_v": np.ones(8, f)}, ValueError, "attention_v|weight"),
        ({"mode": "local-m"}, ValueError, "half_width"),
        ({"mode": "local-m", "half_width": -1}, ValueError, "half_width"),
        ({"mode": "local-m", "half_width": "2"}, TypeError, "half_width"),
        ({"mode": "local-p", "half_width": 2}, ValueError, "position_weight"),
        ({"mode": "local-p"} | places, ValueError, "half_width"),
        (places | {"mode": "local-p", "half_width": 2, "position_v": np.ones(9, f)},
         ValueError, "position_v"),
        ({"dtype": "int32"}, TypeError, "dtype"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^({argument})\b"):
            layers.LuongAttention(**changes)


def test_wrong_calls(rng):
    """The message begins with the argument's name."""
    weights, query, memory = made(rng, np.float32, "general", combine=True)
    layer = layers.LuongAttention(**weights)
    local = layers.LuongAttention(**made(rng, np.float32, "general", "local-m")[0])
    predicted = layers.LuongAttention(**made(rng, np.float32, "general", "local-p")[0])
    location = layers.LuongAttention(**made(rng, np.float32, "location")[0])
    for call, error, argument in [
        (lambda: layer(query[..., :6], memory), ValueError, "query"),
        (lambda: layer(query, memory[..., :6]), ValueError, "memory"),
        (lambda: layer(query[:2], memory), ValueError, "query|memory"),
        (lambda: layer(query[None, None], memory), ValueError, "query|memory"),
        (lambda: layer(query, memory, position=1), ValueError, "position"),
        (lambda: predicted(query, memory, position=1), ValueError, "position"),
        (lambda: local(query, memory, position=1.5), TypeError, "position"),
        (lambda: local(query, memory, position=[1, 2]), ValueError, "position"),
        (lambda: layer(query, memory, attn_mask=np.ones((4, 10), bool)), ValueError, "attn_mask"),
        (lambda: layer(query, memory, attn_mask=np.ones(11, int)), TypeError, "attn_mask"),
        (lambda: location(query, np.zeros((3, 14, 8), "f4")), ValueError, "memory|weight"),
    ]:
        with pytest.raises(error, match=rf"^({argument})\b"):
            call()
    for unused in (local, layer):
        unused(query, memory, position=0)
