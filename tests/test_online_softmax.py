# SPDX-License-Identifier: MIT
# The running maximum: extreme, equal and shifted scores, tiles that are wholly masked.
# Used by the suite, on every backend.
# Rows with no key at all are in test_masked_rows.py, rounding errors in test_precision.py.
"""Softmax is shift invariant: no finite number may act as minus infinity, none may overflow."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


@pytest.mark.parametrize("queries", [1, QUERY_BLOCK + 2])
def test_whole_row_biased_by_the_smallest_float(backend, rng, dtype, queries):
    """Case 5: with finfo.min added everywhere all scores tie; the answer is the mean."""
    keys = 200
    q, k, v = qkv(rng, dtype, lead=(), heads=2, queries=queries, keys=keys, dim=1, dv=3)
    q = (np.sign(q.astype(np.float32)) * 30).astype(dtype)
    k = (k.astype(np.float32) * 8).astype(dtype)
    floor = np.finfo(np.float64 if dtype == np.float64 else np.float32).min
    bias = np.full((queries, keys), floor, np.float64 if dtype == np.float64 else np.float32)
    out = sdpa(q, k, v, bias=bias, scale=1.0)
    mean = v.astype(np.float64).mean(axis=-2, keepdims=True)
    assert_close(out, np.broadcast_to(mean, out.shape))


def test_half_precision_minimum_is_a_number(backend, rng):
    """Case 5: -65504 in float16 hides nothing; every row ties up to its own scores."""
    q, k, v = qkv(rng, np.float16, queries=3, keys=20)
    bias = np.full((3, 20), -65504, np.float16)
    assert_close(sdpa(q, k, v, bias=bias), expected(q, k, v).out, slack=0.05)
    bias[1, 3] = 0
    out = sdpa(q, k, v, bias=bias)
    assert_bits_equal(out[..., 1, :], v[..., 3, :])


@pytest.mark.parametrize("size", [1e3, 1e4, 5e4, 1e5, 2e5, 1e6, 1e30])
def test_very_negative_scores_keep_their_weights(backend, size):
    """Case 7: all scores equal -L: the mean; one key ahead: that key."""
    q = np.full((1, 1, 1, 1), -size, np.float32)
    v = np.array([3, 7, 9], np.float32).reshape(1, 1, 3, 1)
    k = np.ones((1, 1, 3, 1), np.float32)
    np.testing.assert_allclose(sdpa(q, k, v, scale=1.0).item(), 19 / 3, rtol=1e-6)
    k = np.array([1, 2, 1.5], np.float32).reshape(1, 1, 3, 1)
    assert sdpa(q, k, v, scale=1.0).item() == 3.0
    tied = np.tile(q, (1, 1, QUERY_BLOCK + 1, 1))
    k, v = np.ones((1, 1, KEY_TILE + 3, 1), np.float32), np.ones((1, 1, KEY_TILE + 3, 1), "f4")
    np.testing.assert_allclose(sdpa(tied, k, v, scale=1.0), 1.0, rtol=1e-5)


def test_masked_key_never_wins(backend):
    """Case 8: a hidden key has no weight even when the live scores are lower than any filler."""
    q = np.full((1, 1, 1, 1), -2e5, np.float32)
    k = np.array([1, 2, 0], np.float32).reshape(1, 1, 3, 1)
    v = np.array([3, 7, 1000], np.float32).reshape(1, 1, 3, 1)
    mask = np.array([True, True, False])
    assert sdpa(q, k, v, mask, scale=1.0).item() == 3.0
    assert sdpa(q, k, v, np.where(mask, 0.0, -np.inf), scale=1.0).item() == 3.0
    assert sdpa(q, k, v, kv_lengths=2, scale=1.0).item() == 3.0
    assert sdpa(q, k, v, window=(-1, 1), scale=1.0).item() == 3.0


@pytest.mark.parametrize("queries", [1, 3, QUERY_BLOCK + 1])
@pytest.mark.parametrize("tile", [KEY_TILE, KEY_CHUNK])
@pytest.mark.parametrize("hidden", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
def test_whole_tiles_masked(backend, rng, queries, tile, hidden):
    """Case 10: tiles without a live key, then very negative scores in the others."""
    q, k, v = qkv(rng, lead=(), heads=2, queries=queries, keys=3 * tile, dim=2, dv=3)
    mask = np.ones(3 * tile, bool)
    for t in hidden:
        mask[t * tile : (t + 1) * tile] = False
    v[:, ~mask] = 1e6
    for base in (-500.0, 500.0):
        bias = np.full((queries, 3 * tile), base, np.float32)
        bias += draw(rng, bias.shape)
        check(q, k, v, mask, bias=bias)
        check(q, k, v, bias=np.where(mask, bias, np.float32(-np.inf)))


@pytest.mark.parametrize("shift", [-1e4, -200.0, -90.0, 0.0, 90.0, 200.0, 1e4])
def test_shift_of_all_scores(backend, rng, dtype, shift):
    """Case 13: adding a constant to every score changes nothing but its rounding."""
    for queries, keys in ((1, 2 * KEY_TILE + 1), (QUERY_BLOCK + 1, 33)):
        q, k, v = qkv(rng, dtype, lead=(1,), queries=queries, keys=keys)
        check(q, k, v, bias=np.full((1, 1), shift, np.float32))
        check(q, k, v, np.full((keys,), shift, np.float64), softcap=5.0)


def test_maximum_found_in_any_tile(backend, rng):
    """The dominant key may sit in any tile and at any place of it."""
    keys = 2 * KEY_CHUNK + 3
    q, k, v = qkv(rng, lead=(), heads=1, queries=1, keys=keys, dim=1, dv=2)
    for at in {0, 1, KEY_TILE - 1, KEY_TILE, KEY_CHUNK - 1, KEY_CHUNK, keys - 2, keys - 1}:
        bias = np.zeros(keys, np.float32)
        bias[at] = 300.0
        assert_bits_equal(sdpa(q, k, v, bias=bias)[:, 0], v[:, at])
    rising = np.arange(keys, dtype=np.float32) * 0.5
    check(q, k, v, bias=rising)
    check(q, k, v, bias=rising[::-1])
    many = np.tile(q, (1, QUERY_BLOCK + 1, 1))
    check(many, k, v, bias=rising)
    check(many, k, v, bias=rising[::-1])


@pytest.mark.parametrize("keys", [1, KEY_TILE + 1, 2 * KEY_TILE - 1, KEY_CHUNK + 1])
@pytest.mark.parametrize("score", [-50.0, -1e3])
@pytest.mark.parametrize("queries", [1, QUERY_BLOCK + 1])
def test_padding_of_the_last_tile_has_no_weight(backend, dtype, keys, score, queries):
    """Case 80: keys that exist only in a padded tile would win with score 0."""
    q = np.full((1, 2, queries, 1), score, dtype)
    k, v = np.ones((1, 2, keys, 1), dtype), np.ones((1, 2, keys, 3), dtype)
    out, lse = sdpa(q, k, v, scale=1.0, return_lse=True)
    assert_close(out, np.ones(out.shape))
    np.testing.assert_allclose(lse, score + np.log(keys), rtol=1e-3 if score < -100 else 1e-5)


def test_finite_terms_that_overflow_saturate(backend, rng, dtype):
    """Two finite minima, or one too big for the accumulator, push a key back but not out."""
    q, k, v = qkv(rng, dtype, lead=(), heads=2, queries=3, keys=7)
    floor = np.finfo(np.float64 if dtype == np.float64 else np.float32).min
    mask = np.zeros((3, 7), np.float64 if dtype == np.float64 else np.float32)
    mask[:, 2:5] = floor
    check(q, k, v, mask, bias=mask, weights=True)
    check(q, k, v, mask, bias=mask, alibi_slopes=np.array([1e4, 1e30], np.float32), q_offset=9)
    everywhere = np.full((3, 7), floor, mask.dtype)
    out, lse = sdpa(q, k, v, everywhere, bias=everywhere, return_lse=True)
    mean = v.astype(np.float64).mean(axis=-2, keepdims=True)
    assert_close(out, np.broadcast_to(mean, out.shape))
    assert np.isfinite(lse).all()


def test_bias_beyond_float32(backend, rng):
    """A float64 bias that float32 cannot hold is a number, not a mask, and never NaN."""
    q, k, v = qkv(rng, lead=(), heads=2, queries=4, keys=9)
    bias = np.zeros((4, 9))
    bias[:, 5:] = -1e300
    check(q, k, v, bias=bias, weights=True)
    out = sdpa(q, k, v, bias=np.full((4, 9), -1e300))
    mean = v.astype(np.float64).mean(axis=-2, keepdims=True)
    assert_close(out, np.broadcast_to(mean, out.shape))


def test_equal_keys_get_equal_weights(backend, rng):
    """Equal scores give equal weights wherever the keys lie in a tile."""
    keys = 2 * KEY_TILE + 5
    q, k, v = qkv(rng, lead=(), heads=2, queries=3, keys=keys, dim=7)
    k[:] = k[:, :1]
    weights = sdpa(q, k, v, return_weights=True)[1]
    if backend != "numpy":
        assert (weights == weights[..., :1]).all()
    np.testing.assert_allclose(weights, 1 / keys, rtol=2e-5)
