# SPDX-License-Identifier: MIT
# BahdanauAttention: formula, forms, prepared memory, lengths, masks, errors.
# Used by the suite, on every backend.
# The kernel's own behaviour is in test_additive*.py.
"""Additive attention as a layer follows its formula, step by step and all at once."""

import pickle

import numpy as np
import pytest
from check import assert_bits_equal, draw
from layer_formulas import attend, near, uniform, wide

from fastattn.layers import BahdanauAttention


def case(rng, dtype, *, query_dim=4, key_dim=5, units=7, bias=True):
    return {
        "attention_v": draw(rng, units, dtype),
        "query_weight": uniform(rng, (query_dim, units), dtype),
        "key_weight": uniform(rng, (key_dim, units), dtype),
        "hidden_bias": draw(rng, units, dtype) if bias else None,
    }


def formula(given, query, memory, value=None, allowed=True, bias=0.0):
    """Of the sequence form."""
    q = wide(query) @ wide(given["query_weight"])
    k = np.where(np.isfinite(wide(memory)), wide(memory), 0) @ wide(given["key_weight"])
    if given["hidden_bias"] is not None:
        k = k + wide(given["hidden_bias"])
    vector = wide(given["attention_v"])
    if given.get("normalizer") is not None:
        vector = given["normalizer"] * vector / np.linalg.norm(vector)
    scores = np.tanh(q[..., :, None, :] + k[..., None, :, :]) @ vector + bias
    return attend(scores, wide(memory if value is None else value), allowed)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("normalizer", [None, 2.5])
def test_both_forms(backend, rng, dtype, lead, bias, normalizer):
    """A sequence of queries, and each of them as a step; with a value of its own and without."""
    given = case(rng, dtype, bias=bias) | {"normalizer": normalizer}
    layer = BahdanauAttention(**given)
    query, memory = draw(rng, (*lead, 6, 4), dtype), draw(rng, (*lead, 9, 5), dtype)
    for value in (None, draw(rng, (*lead, 9, 8), dtype)):
        want = formula(given, query, memory, value)
        got = layer(query, memory, value=value, return_weights=True)
        for one, other in zip(got, want):
            assert one.dtype == dtype
            near(one, other)
        prepared = layer.prepare(memory, value=value)
        assert prepared.shape == (*lead, 9) and prepared.dtype == dtype
        for i in range(6):
            step = layer(query[..., i, :], prepared, return_weights=True)
            near(step[0], want[0][..., i, :])
            near(step[1], want[1][..., i, :])
            plain = layer(query[..., i, :], memory, value=value)
            assert_bits_equal(step[0], plain)


def test_lengths_and_masks(backend, rng, dtype):
    """Lengths, bool masks, float masks, in both forms; what is hidden may be NaN."""
    given = case(rng, dtype)
    layer = BahdanauAttention(**given)
    query, memory = draw(rng, (3, 6, 4), dtype), draw(rng, (3, 9, 5), dtype)
    lengths = [9, 4, 0]
    real = (np.arange(9) < np.array(lengths)[:, None])[:, None]
    memory[1, 4:], memory[2] = np.nan, np.nan
    mask = rng.random((3, 6, 9)) < 0.6
    floats = np.where(mask, draw(rng, (3, 6, 9), np.float32), -np.inf).astype(np.float32)
    for option, allowed, bias in (
        (None, real, 0.0),
        (mask, real & mask, 0.0),
        (mask[0, 0], real & mask[0, 0], 0.0),
        (floats, real & mask, np.where(mask, floats, 0).astype(np.float64)),
    ):
        want = formula(given, query, memory, allowed=allowed, bias=bias)
        options = {"memory_lengths": lengths, "attn_mask": option}
        got = layer(query, memory, return_weights=True, **options)
        for one, other in zip(got, want):
            near(one, other)
        assert not got[0][2].any() and not got[1][2].any()
        if option is not None and option.ndim == 3:
            options["attn_mask"] = option[:, 2]
        step = layer(query[:, 2], layer.prepare(memory), return_weights=True, **options)
        near(step[0], want[0][:, 2])
        near(step[1], want[1][:, 2])


def test_entries_do_not_depend_on_each_other(backend, rng, dtype):
    layer = BahdanauAttention(**case(rng, dtype))
    query, memory = draw(rng, (5, 4), dtype), draw(rng, (5, 70, 5), dtype)
    together = layer(query, memory)
    for entry in range(5):
        assert_bits_equal(together[entry], layer(query[entry], memory[entry]))


def test_it_owns_its_weights_and_memory(backend, rng, real):
    given = case(rng, real)
    layer = BahdanauAttention(**given)
    query, memory = draw(rng, (2, 4), real), draw(rng, (2, 9, 5), real)
    prepared = layer.prepare(memory)
    before = layer(query, prepared)
    again = pickle.loads(pickle.dumps((layer, prepared)))
    for array in (*given.values(), memory):
        array[...] = np.nan
    assert_bits_equal(layer(query, prepared), before)
    assert_bits_equal(again[0](query, again[1]), before)
    with pytest.raises(AttributeError, match="_attention_v"):
        layer._attention_v = None


def test_empty_axes(backend, rng, dtype):
    layer = BahdanauAttention(**case(rng, dtype))
    for lead, queries, keys in (((0,), 3, 4), ((2,), 0, 4), ((2,), 3, 0)):
        query, memory = draw(rng, (*lead, queries, 4), dtype), draw(rng, (*lead, keys, 5), dtype)
        out, weights = layer(query, memory, return_weights=True)
        assert out.shape == (*lead, queries, 5) and weights.shape == (*lead, queries, keys)
        assert not out.any()


def test_repr():
    layer = BahdanauAttention(
        attention_v=np.ones(3), query_weight=np.ones((2, 3)), key_weight=np.ones((4, 3))
    )
    assert repr(layer) == "BahdanauAttention(query_dim=2, key_dim=4, units=3, dtype='float64')"
    memory = layer.prepare(np.ones((5, 6, 4)))
    assert repr(memory) == "PreparedMemory(shape=(5, 6), units=3, value_dim=4, dtype='float64')"


def test_weights_that_do_not_fit(rng):
    given = case(rng, np.float32)
    for name, wrong, error in (
        ("query_weight", np.ones((4, 6), np.float32), ValueError),
        ("key_weight", np.ones(5, np.float32), ValueError),
        ("hidden_bias", np.ones(7), TypeError),
        ("attention_v", np.arange(7), TypeError),
        ("attention_v", None, TypeError),
        ("normalizer", np.inf, ValueError),
        ("normalizer", "1", TypeError),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            BahdanauAttention(**given | {name: wrong})
    with pytest.raises(ValueError, match="^attention_v: "):
        BahdanauAttention(**given | {"attention_v": np.zeros(7, np.float32)}, normalizer=1.0)


def test_calls_that_do_not_fit(backend, rng):
    layer = BahdanauAttention(**case(rng, np.float32))
    query, memory = draw(rng, (3, 4)), draw(rng, (3, 9, 5))
    prepared = layer.prepare(memory)
    other = BahdanauAttention(**case(rng, np.float32, units=6)).prepare(memory)
    wide_one = BahdanauAttention(**case(rng, np.float64)).prepare(memory.astype(float))
    for name, error, arguments, options in (
        ("query", TypeError, (query.astype(float), memory), {}),
        ("query", ValueError, (query[:, :3], memory), {}),
        ("query", ValueError, (query[:2], memory), {}),
        ("query", ValueError, (query[None, None], memory), {}),
        ("memory", ValueError, (query, memory[..., :4]), {}),
        ("memory", TypeError, (query, memory.astype(np.float16)), {}),
        ("memory", ValueError, (query, memory[0, 0]), {}),
        ("memory", ValueError, (query, other), {}),
        ("memory", TypeError, (query, wide_one), {}),
        ("value", ValueError, (query, prepared), {"value": memory}),
        ("value", ValueError, (query, memory), {"value": memory[:, :8]}),
        ("value", TypeError, (query, memory), {"value": memory.astype(float)}),
        ("memory_lengths", ValueError, (query, memory), {"memory_lengths": 10}),
        ("memory_lengths", ValueError, (query, memory), {"memory_lengths": [1, 2]}),
        ("memory_lengths", TypeError, (query, memory), {"memory_lengths": [1.0, 2, 3]}),
        ("attn_mask", ValueError, (query, memory), {"attn_mask": np.ones((3, 8), bool)}),
        ("attn_mask", TypeError, (query, memory), {"attn_mask": np.ones((3, 9), int)}),
        ("return_weights", TypeError, (query, memory), {"return_weights": "yes"}),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            layer(*arguments, **options)
