# SPDX-License-Identifier: MIT
# BahdanauAttention: what a decoder does with it, step by step or all at once.
# Used by the suite, on every backend.
# Dtypes, axes and wrong inputs of all layers are in test_layers.py.
"""Additive attention over a memory that is projected once for all steps of a decoder."""

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer, bahdanau, poisoned
from layer_cases import drawn

from fastattn import layers

LENGTHS = np.array([5, 2, 0])


@pytest.fixture
def given(rng, real):
    """(weights, query, memory, value) of 3 entries, 4 queries, 5 keys; no two sizes are equal."""
    weights = drawn(rng, real, attention_v=9, query_weight=(7, 9), key_weight=(8, 9))
    shapes = (3, 4, 7), (3, 5, 8), (3, 5, 10)
    return weights, *(draw(rng, shape, real) for shape in shapes)


@pytest.mark.parametrize("extra", [(), ("hidden_bias",), ("normalizer",)], ids=str)
def test_formula(backend, rng, real, given, extra):
    """a . tanh(q Wq + k Wk + b); weight normalisation makes a = g v / |v|."""
    weights, query, memory, value = given
    more = {"hidden_bias": draw(rng, 9, real), "normalizer": 2.5}
    weights |= {n: more[n] for n in extra}
    layer = layers.BahdanauAttention(**weights)
    got = layer(query, memory, value=value, return_weights=True)
    assert_layer(got, bahdanau(weights, query, memory, value=value), real)
    assert_bits_equal(layer(query, memory, value=value), got[0])


def test_length_of_a_normalized_vector_does_not_matter(backend, rng):
    """Only its direction does: 1000 v gives what v gives."""
    weights = drawn(rng, np.float64, attention_v=9, query_weight=(7, 9), key_weight=(8, 9))
    query, memory = draw(rng, (4, 7), np.float64), draw(rng, (5, 8), np.float64)
    wanted = bahdanau(weights | {"normalizer": 0.5}, query, memory)
    weights["attention_v"] = weights["attention_v"] * 1000
    layer = layers.BahdanauAttention(**weights, normalizer=0.5)
    assert_layer(layer(query, memory, return_weights=True), wanted, np.float64)


def test_the_memory_is_its_own_value(backend, real, given):
    weights, query, memory, _ = given
    layer = layers.BahdanauAttention(**weights)
    wanted = bahdanau(weights, query, memory)
    assert_layer(layer(query, memory, return_weights=True), wanted, real)


@pytest.mark.parametrize("is_prepared", [False, True], ids=["memory", "prepared"])
def test_steps_are_rows_of_the_sequence(backend, rng, real, given, is_prepared):
    """A query without its axis gives a context and weights without it, with every mask."""
    weights, query, memory, value = given
    memory, value = poisoned(memory, LENGTHS), poisoned(value, LENGTHS)
    layer = layers.BahdanauAttention(**weights)
    masks = {
        "none": None,
        "bool": rng.random((3, 4, 5)) < 0.7,
        "of keys": rng.random((3, 1, 5)) < 0.7,
        "float": np.where(rng.random((4, 5)) < 0.2, -np.inf, 0.5),
    }
    options = {"memory_lengths": LENGTHS, "return_weights": True}
    if is_prepared:
        memory_given, of_value = layer.prepare(memory, value=value), {}
    else:
        memory_given, of_value = memory, {"value": value}
    for name, mask in masks.items():
        wanted = bahdanau(weights, query, memory, value=value, memory_lengths=LENGTHS,
                          attn_mask=mask)  # fmt: skip
        got = layer(query, memory_given, **of_value, attn_mask=mask, **options)
        assert_layer(got, wanted, real, name)
        for i in range(4):
            of_step = mask
            if mask is not None:
                of_step = mask[..., min(i, mask.shape[-2] - 1), :]
            step = layer(query[:, i], memory_given, **of_value, attn_mask=of_step, **options)
            assert_layer(step, tuple(x[:, i] for x in wanted), real, f"{name}, step {i}")


def test_prepared_memory_is_the_memory(backend, rng, given):
    """The same bits, whether the value was given or is the memory; its arrays are not kept."""
    weights, query, memory, value = given
    layer = layers.BahdanauAttention(**weights)
    for values in ({}, {"value": value}):
        prepared = layer.prepare(memory, **values)
        wanted = layer(query, memory, **values, memory_lengths=LENGTHS)
        for _ in range(2):
            assert_bits_equal(layer(query, prepared, memory_lengths=LENGTHS), wanted)


def test_one_memory_for_a_batch_of_queries(backend, rng, real, given):
    """Leading axes of query and memory broadcast: an image's features, many beams."""
    weights, query, memory, _ = given
    layer = layers.BahdanauAttention(**weights)
    wanted = bahdanau(weights, query, memory[:1])
    assert_layer(layer(query, memory[:1], return_weights=True), wanted, real)
    assert_layer(layer(query, layer.prepare(memory[:1]), return_weights=True), wanted, real)


def test_rows_that_may_see_nothing(backend, given):
    """Zero context and weights, decided by the intersection of lengths and mask."""
    weights, query, memory, _ = given
    layer = layers.BahdanauAttention(**weights)
    mask = np.arange(5) >= 2
    for form in (query, query[:, 0]):
        out, alpha = layer(form, memory, memory_lengths=LENGTHS, attn_mask=mask,
                           return_weights=True)  # fmt: skip
        assert out[0].any() and not out[1:].any() and not alpha[1:].any()


def test_sizes_of_zero(backend, given):
    weights, query, memory, _ = given
    layer = layers.BahdanauAttention(**weights)
    assert not layer(query, memory[:, :0]).any()
    assert layer(query, memory[:, :0]).shape == (3, 4, 8)
    assert layer(query[:, :0], memory).shape == (3, 0, 8)


def test_wrong_calls(given):
    """The message begins with the argument's name."""
    weights, query, memory, value = given
    layer = layers.BahdanauAttention(**weights)
    prepared = layer.prepare(memory)
    flags, counts = np.zeros((4, 6), bool), np.zeros((4, 5), int)
    for call, error, argument in [
        (lambda: layer(query[..., :6], memory), ValueError, "query"),
        (lambda: layer(query, memory[..., :6]), ValueError, "memory"),
        (lambda: layer(query[None, None], memory), ValueError, "query|memory"),
        (lambda: layer(query[:2], memory), ValueError, "query|memory"),
        (lambda: layer(query, memory, value=value[:, :4]), ValueError, "value"),
        (lambda: layer(query, prepared, value=value), ValueError, "value"),
        (lambda: layer.prepare(memory, value=value[:, :4]), ValueError, "value"),
        (lambda: layer.prepare(memory[..., :6]), ValueError, "memory"),
        (lambda: layer.prepare(memory.astype("f2")), TypeError, "memory"),
        (lambda: layer(query, memory, attn_mask=flags), ValueError, "attn_mask"),
        (lambda: layer(query[:, 0], memory, attn_mask=flags[:, :5]), ValueError, "attn_mask"),
        (lambda: layer(query, memory, attn_mask=counts), TypeError, "attn_mask"),
        (lambda: layers.BahdanauAttention(**weights, normalizer="g"), TypeError, "normalizer"),
        (lambda: layers.BahdanauAttention(**weights, normalizer=np.inf), ValueError, "normalizer"),
    ]:
        with pytest.raises(error, match=rf"^({argument})\b"):
            call()
