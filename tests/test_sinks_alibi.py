# SPDX-License-Identifier: MIT
# Attention sinks and linear position biases.
# Used by the suite, on every backend.
# Empty rows with sinks are in test_masked_rows.py, wrong values in test_errors.py.
"""A sink adds exp(sink) to the denominator; a slope subtracts slope * |p - j| from the score."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
SHAPES = [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5), (3, KEY_CHUNK + 1)]


def test_sink_takes_its_share(backend, dtype):
    """Two equal keys and a sink as large as they are: two thirds of the weight are left."""
    zeros = np.zeros((1, 1, 2, 3), dtype)
    v = np.array([3, 6], dtype).reshape(1, 1, 2, 1)
    out, lse, weights = sdpa(
        zeros, zeros, v, sinks=np.zeros(1, np.float32), return_lse=True, return_weights=True
    )
    assert_close(out.ravel(), np.full(2, 3.0))
    assert_close(weights.ravel(), np.full(4, 1 / 3))
    assert_close(lse.ravel(), np.full(2, np.log(3)), dtype=np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_sinks(backend, rng, dtype, shape):
    """Sinks of every size against the oracle, per query head, in every path."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, heads=6, kv_heads=2, queries=queries, keys=keys)
    for sinks in (
        [0.0, 1.0, -1.0, 5.0, -20.0, 12.0],
        [-np.inf, 100.0, -100.0, 1e4, -1e4, 0.5],
        [-np.inf] * 6,
    ):
        for kind in (np.float32, np.float64, np.float16):
            check(q, k, v, sinks=np.array(sinks, kind), weights=True, context=str(sinks))
    check(q, k, v, sinks=draw(rng, 6), is_causal=True, q_offset="lower_right", softcap=2.0)


def test_sink_of_minus_infinity_is_none(backend, rng, dtype):
    q, k, v = qkv(rng, dtype)
    assert_bits_equal(sdpa(q, k, v, sinks=np.full(3, -np.inf)), sdpa(q, k, v))


def test_sinks_beyond_float32(backend, rng):
    """Huge finite sinks swallow the row or vanish; neither makes NaN."""
    q, k, v = qkv(rng)
    for sinks in (np.array([1e300, -1e300, 0.0]), np.array([3e38, -3e38, 0.0], np.float32)):
        out, lse = sdpa(q, k, v, sinks=sinks, return_lse=True)
        assert (out[:, 0] == 0).all() and np.isfinite(out).all() and not np.isnan(lse).any()
        assert_close(out[:, 1], sdpa(q, k, v)[:, 1].astype(np.float64))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16", ">f4", ">f8"])
def test_float_types(backend, rng, dtype, kind):
    """Slopes and sinks may have any float dtype, stride and byte order."""
    if kind == "bfloat16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = qkv(rng, dtype, queries=4, keys=9)
    slopes, sinks = draw(rng, 6, kind)[::2], draw(rng, 3, kind)[::-1]
    check(q, k, v, alibi_slopes=slopes, weights=True)
    check(q, k, v, sinks=sinks, weights=True)
    check(q, k, v, sinks=sinks, alibi_slopes=slopes, is_causal=True, q_offset=3)


def test_lists_of_floats(backend, rng):
    q, k, v = qkv(rng)
    given = {"sinks": [0.5, -1.0, 2.0], "alibi_slopes": [0.25, 0.5, -0.125]}
    wanted = sdpa(q, k, v, **{n: np.array(x) for n, x in given.items()})
    assert_bits_equal(sdpa(q, k, v, **given), wanted)


def test_slope_counts_positions(backend, dtype):
    """With equal scores the weights fall by e^-slope per position, on both sides."""
    zeros = np.zeros((1, 1, 5, 2), dtype)
    weights = sdpa(
        zeros[:, :, :1], zeros, zeros, alibi_slopes=np.array([np.log(2.0)]), q_offset=2,
        return_weights=True,
    )[1]  # fmt: skip
    fall = np.array([1, 2, 4, 2, 1]) / 10
    assert_close(weights.ravel(), fall)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0, -3, 7, "lower_right", "array"])
def test_slopes(backend, rng, dtype, shape, offset):
    """Slopes per head or per entry and head, of any sign, with every kind of offset."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(2,), heads=6, kv_heads=3, queries=queries, keys=keys)
    offset = np.array([4, -1]) if isinstance(offset, str) and offset == "array" else offset
    usual = 2.0 ** -np.arange(1, 7)
    check(q, k, v, alibi_slopes=usual, q_offset=offset, is_causal=True)
    check(q, k, v, alibi_slopes=draw(rng, (2, 6), size=0.1), q_offset=offset, weights=True)
    check(q, k, v, alibi_slopes=draw(rng, 6), q_offset=offset, kv_lengths=[keys, keys // 2])


def test_slopes_with_several_leading_axes(backend, rng):
    q, k, v = qkv(rng, lead=(2, 5), heads=3)
    for shape in ((3,), (2, 5, 3)):
        check(q, k, v, alibi_slopes=draw(rng, shape), weights=True)
    check(q[0, 0], k[0, 0], v[0, 0], alibi_slopes=draw(rng, 3), weights=True)
    check(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], alibi_slopes=draw(rng, 1), weights=True)


def test_zero_slopes_change_nothing(backend, rng, dtype):
    q, k, v = qkv(rng, dtype)
    got = sdpa(q, k, v, alibi_slopes=np.zeros(3, np.float32))
    assert_close(got, sdpa(q, k, v).astype(np.float64))


@pytest.mark.parametrize("offset", [1 << 20, -(1 << 20), (1 << 62)])
def test_far_positions(backend, rng, offset):
    """A uniform huge distance is a shift; it neither overflows nor hides a key."""
    q, k, v = qkv(rng, queries=3, keys=9)
    out, lse = sdpa(
        q, k, v, alibi_slopes=np.full(3, 1e-3, np.float32), q_offset=offset, return_lse=True
    )
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    out, lse = sdpa(q, k, v, alibi_slopes=np.full(3, 3e38), q_offset=offset, return_lse=True)
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    out, lse = sdpa(q, k, v, alibi_slopes=np.full(3, -1e-3), q_offset=offset, return_lse=True)
    assert np.isfinite(out).all()


def test_slopes_beyond_float32(backend, rng):
    """A slope that float32 cannot hold saturates; only the own key is left."""
    q, k, v = qkv(rng, queries=7, keys=7)
    out = sdpa(q, k, v, alibi_slopes=np.full(3, 1e300))
    assert_bits_equal(out, v)


def test_sinks_and_slopes_under_every_mask(backend, rng, dtype):
    q, k, v = qkv(
        rng, dtype, lead=(2,), heads=6, kv_heads=2, queries=QUERY_BLOCK + 1, keys=KEY_TILE
    )
    check(
        q, k, v, rng.random((QUERY_BLOCK + 1, KEY_TILE)) < 0.6, bias=draw(rng, (6, 1, KEY_TILE)),
        alibi_slopes=draw(rng, 6, size=0.2), sinks=draw(rng, 6), is_causal=True, window=(30, 0),
        q_offset=[10, KEY_TILE - QUERY_BLOCK], kv_lengths=[KEY_TILE, 20], softcap=3.0, weights=True,
    )  # fmt: skip
