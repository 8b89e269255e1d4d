# SPDX-License-Identifier: MIT
# attention(score=...): every kind of score against its own formula.
# Used by the suite, on every backend.
# The additive score itself is in test_additive*.py, the dot product's in the rest of the suite;
# wrong arguments are in test_scores_errors.py.
"""Each kind of score is its formula, with everything else as in the dot product."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, attend, draw, qkv
from check_additive import case, check_additive
from check_scores import KINDS, some_score, wide_scores

import fastattn
from fastattn import scores

attention = fastattn.attention
SHAPES = [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5)]
F = np.float32


def check(score, query, key, value, context="", **options):
    """Compare out, lse and weights with the oracle; return out."""
    want = attend(wide_scores(score, query.dtype), query, key, value, **options)
    out = np.full(want.out.shape, np.nan, query.dtype)
    got = attention(
        query, key, value, score=score, out=out, return_lse=True, return_weights=True, **options
    )
    assert got[0] is out
    assert_close(out, want.out, slack=want.out_slack, size=want.size, context=f"out {context}")
    assert_close(got[1], want.lse, slack=want.lse_slack, context=f"lse {context}")
    slack = np.where(want.weights == 0, 0, want.weights_slack)
    assert_close(got[2], want.weights, slack=slack, context=f"weights {context}")
    assert not got[2][want.weights == 0].any()
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_formula(backend, rng, dtype, kind, shape):
    """Grouped heads, with and without masks, in both layouts."""
    queries, keys = shape
    score, key_dim = some_score(rng, kind, dtype, 8, 5, keys)
    q, _, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys, dim=8)
    k = draw(rng, (2, 2, keys, key_dim), dtype)
    options = {
        "causal": {"is_causal": True, "q_offset": "lower_right"},
        "mask": {"attn_mask": rng.random((queries, keys)) < 0.7, "sinks": draw(rng, 4)},
        "lengths": {"kv_lengths": [keys // 2, 0], "bias": draw(rng, (4, 1, keys))},
        "window": {"window": (keys // 2, 2), "alibi_slopes": draw(rng, 4, size=0.1)},
    }
    check(score, q, k, v)
    for name, option in options.items():
        check(score, q, k, v, context=name, **option)
    check(score, *(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)), layout="bshd")


@pytest.mark.parametrize("kind", KINDS)
def test_softcap(backend, rng, dtype, kind):
    score, key_dim = some_score(rng, kind, dtype, 8, 5, 9)
    q, _, v = qkv(rng, dtype, queries=4, keys=9, dim=8)
    k = draw(rng, (2, 3, 9, key_dim), dtype)
    want = attend(wide_scores(score, dtype, softcap=0.7), q, k, v)
    got = attention(q, k, v, score=score, softcap=0.7)
    assert_close(got, want.out, slack=want.out_slack, size=want.size)


@pytest.mark.parametrize("kind", KINDS)
def test_views_ranks_and_leading_axes(backend, rng, dtype, kind):
    score, key_dim = some_score(rng, kind, dtype, 8, 5, 9)
    q, v = draw(rng, (2, 1, 4, 3, 8), dtype), draw(rng, (1, 5, 2, 9, 6), dtype)
    k = draw(rng, (2, 5, 2, 9, key_dim), dtype)
    out = check(score, q, k, v)
    views = [np.asfortranarray(x) for x in (q, k, v)]
    assert_bits_equal(attention(*views, score=score), out)
    views = [x[..., ::-1, ::-1].copy()[..., ::-1, ::-1] for x in (q, k, v)]
    assert_bits_equal(attention(*views, score=score), out)
    check(score, q[0, 0], k[0, 0], v[0, 0])
    check(score, q[0, 0, 0], k[0, 0, 0], v[0, 0, 0])


def test_names_are_the_functions(backend, rng, dtype):
    """The dot products are scaled_dot_product_attention, to the last bit."""
    q, k, v = qkv(rng, dtype)
    sdpa = fastattn.scaled_dot_product_attention
    assert_bits_equal(attention(q, k, v), sdpa(q, k, v))
    assert_bits_equal(attention(q, k, v, score="scaled_dot"), sdpa(q, k, v))
    assert_bits_equal(attention(q, k, v, score="dot"), sdpa(q, k, v, scale=1.0))
    assert_bits_equal(attention(q, k, v, score="cosine"), attention(q, k, v, score=scores.Cosine()))


def test_additive_is_the_function(backend, rng, dtype):
    given = case(rng, dtype, heads=4, kv_heads=2)
    wanted = check_additive(**given, is_causal=True)
    arrays = [given.pop(name) for name in ("query", "key", "value")]
    got = attention(*arrays, score=scores.Additive(**given), is_causal=True, softcap=None)
    assert_bits_equal(got, wanted)
    bias, weight = given.pop("hidden_bias"), given.pop("key_weight")
    keys = fastattn.prepare_additive_keys(arrays[1], key_weight=weight, hidden_bias=bias)
    score = scores.Additive(**given)
    assert_bits_equal(attention(arrays[0], keys, arrays[2], score=score, is_causal=True), wanted)


def test_concat(backend, rng, dtype):
    """The additive score with the two halves of W; its formula is in test_additive.py."""
    for heads in ((), (4,)):
        given = case(rng, dtype, heads=4, kv_heads=2, without=("hidden_bias",))
        given["attention_v"] = draw(rng, (*heads, 11), dtype)
        wanted = check_additive(**given, kv_lengths=[6, 2])
        weight = np.concatenate([given["query_weight"], given["key_weight"]])
        score = scores.Concat(weight, given["attention_v"])
        arrays = [given[name] for name in ("query", "key", "value")]
        assert_bits_equal(attention(*arrays, score=score, kv_lengths=[6, 2]), wanted)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_cosine_of_any_length(backend, rng, size):
    """Only directions count, and zeros score 0."""
    q, k, v = qkv(rng, queries=6, keys=9, dim=8)
    wanted = check(scores.Cosine(0.1), q, k, v)
    got = attention(q * F(size), k / F(size), v, score=scores.Cosine(0.1))
    assert_close(got, wanted.astype(np.float64), slack=1e-4)
    q[0, 0, 2], k[0, 1, 3] = 0, 0
    out = check(scores.Cosine(0.1), q * F(size), k * F(size), v)
    assert np.isfinite(out).all()
    assert_close(out[0, 0, 2], v[0, 0].astype(np.float64).mean(axis=0))


def test_small_temperature(backend):
    """The score may become very large; the nearest direction takes all."""
    q, k = np.eye(2, dtype=F)[None], np.array([[[1, 0], [0.8, 0.6]]], F)
    for temperature in (1e-30, 1e-310, 5e-324):
        out = attention(q, k, np.array([[[1.0], [2.0]]], F), score=scores.Cosine(temperature))
        assert out.ravel().tolist() == [1.0, 2.0]


def test_location_needs_no_key(backend, rng, dtype):
    """The value in place of the key gives the same, and what the key holds does not matter."""
    q, k, v = qkv(rng, dtype)
    score = scores.Location(draw(rng, (4, 7), dtype))
    wanted = attention(q, k, v, score=score)
    assert_bits_equal(attention(q, v, v, score=score), wanted)
    assert_bits_equal(attention(q, np.full_like(k, np.nan), v, score=score), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_data_may_be_anything(backend, rng, dtype, kind):
    score, key_dim = some_score(rng, kind, dtype, 8, 5, 9)
    q, _, v = qkv(rng, dtype, queries=6, keys=9, dim=8)
    k = draw(rng, (2, 3, 9, key_dim), dtype)
    wanted = attention(q, k, v, score=score, kv_lengths=6)
    k[:, :, 6:], v[:, :, 6:] = np.nan, np.inf
    assert_bits_equal(attention(q, k, v, score=score, kv_lengths=6), wanted)
    q[0, 1, 2] = np.nan
    out = attention(q, k, v, score=score, kv_lengths=6)
    assert np.isnan(out[0, 1, 2]).all() and np.isnan(out).sum() == 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", range(3))
def test_out_over_an_input(backend, rng, dtype, kind, target):
    score, key_dim = some_score(rng, kind, dtype, 6, 6, 7)
    arrays = list(qkv(rng, dtype, queries=7, keys=7, dim=6, dv=6))
    wanted = attention(*arrays, score=score, is_causal=True)
    base = np.zeros((3, 3, 7, 6), dtype)
    base[:2] = arrays[target]
    arrays[target] = base[:2]
    assert attention(*arrays, score=score, is_causal=True, out=base[1:]) is not None
    assert_bits_equal(base[1:], wanted)


def test_sizes_of_zero(backend, rng, dtype):
    for kind in KINDS:
        score, key_dim = some_score(rng, kind, dtype, 4, 5, 0)
        q, v = draw(rng, (2, 3, 5, 4), dtype), draw(rng, (2, 3, 0, 6), dtype)
        out = attention(q, draw(rng, (2, 3, 0, key_dim), dtype), v, score=score)
        assert_bits_equal(out, np.zeros((2, 3, 5, 6), dtype))
    empty = np.zeros((2, 3, 7, 0), dtype)
    v = draw(rng, (2, 3, 7, 6), dtype)
    mean = np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), v.shape)
    for score in ("dot", "cosine", scores.General(np.zeros((0, 0)))):
        assert_close(attention(empty, empty, v, score=score), mean)
