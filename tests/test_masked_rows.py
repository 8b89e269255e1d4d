# SPDX-License-Identifier: MIT
# Rows of queries that may see no key at all.
# Used by the suite, on every backend.
# Rows that see something but whose scores are extreme are in test_online_softmax.py.
"""An empty row is decided by the masks alone: out 0, weights 0, lse -inf (or the sink)."""

import numpy as np
import pytest
from cases import KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


def test_one_empty_row(backend, rng, dtype):
    """Case 1: row i sees keys 0..i, the last row sees none."""
    q, k, v = qkv(rng, dtype, lead=(1,), heads=2, queries=6, keys=10, dim=8, dv=7)
    mask = np.tri(6, 10, dtype=bool)
    mask[5] = False
    out, lse, weights = sdpa(q, k, v, mask, return_lse=True, return_weights=True)
    assert (out[..., 5, :] == 0).all() and (weights[..., 5, :] == 0).all()
    assert np.isneginf(lse[..., 5]).all()
    check(q, k, v, mask, weights=True)
    rest = sdpa(q[..., :5, :], k, v, mask[:5])
    assert_close(out[..., :5, :], rest.astype(np.float64))


@pytest.mark.parametrize("keys", [1, 3, KEY_TILE + 1])
@pytest.mark.parametrize("form", ["bool", "float", "bias", "lengths", "window", "causal"])
def test_every_row_empty(backend, rng, dtype, keys, form):
    """Case 3: a mask that closes everything gives zeros and lse -inf, in every form of mask."""
    q, k, v = qkv(rng, dtype, lead=(2,), heads=3, queries=4, keys=keys, dim=5, dv=6)
    options = {
        "bool": {"attn_mask": np.zeros((4, keys), bool)},
        "float": {"attn_mask": np.full((4, keys), -np.inf, np.float32)},
        "bias": {"bias": np.full((4, 1), -np.inf, np.float64)},
        "lengths": {"kv_lengths": 0},
        "window": {"window": (2, 3), "q_offset": keys + 100},
        "causal": {"is_causal": True, "q_offset": -4},
    }[form]
    out = np.full((2, 3, 4, 6), np.nan, dtype)
    out, lse, weights = sdpa(q, k, v, out=out, return_lse=True, return_weights=True, **options)
    assert_bits_equal(out, np.zeros((2, 3, 4, 6), dtype))
    assert_bits_equal(weights, np.zeros((2, 3, 4, keys), dtype))
    assert np.isneginf(lse).all()
    sinks = np.array([0.5, -2.0, 30.0], np.float32)
    out = np.full((2, 3, 4, 6), np.nan, dtype)
    out, lse = sdpa(q, k, v, out=out, return_lse=True, sinks=sinks, **options)
    assert_bits_equal(out, np.zeros((2, 3, 4, 6), dtype))
    np.testing.assert_array_equal(lse, np.broadcast_to(sinks[:, None], lse.shape))


@pytest.mark.parametrize("keys", [4, 2 * KEY_TILE + 1])
def test_row_closed_by_two_masks_together(backend, rng, keys):
    """Case 4: no mask alone closes row 0, two of them together do."""
    q, k, v = qkv(rng, queries=4, keys=keys, dim=5, dv=3)
    no_first = np.ones((1, keys), bool)
    no_first[0, 0] = False
    for options in (
        {"attn_mask": no_first, "is_causal": True},
        {"attn_mask": no_first, "window": (0, 0)},
        {"attn_mask": np.where(no_first, 0.0, -np.inf), "is_causal": True},
        {"bias": np.where(no_first, 0.0, -np.inf).astype(np.float32), "window": (5, 0)},
        {"window": (-1, 0), "attn_mask": no_first, "kv_lengths": 3},
        {"kv_lengths": 1, "is_causal": True, "attn_mask": no_first},
        {"window": (0, 3), "q_offset": 2, "kv_lengths": 2, "is_causal": True},
        {"bias": np.where(no_first, 1.0, -np.inf), "attn_mask": ~no_first},
    ):
        out = check(q, k, v, weights=True, context=str(options), **options)
        assert (out[..., 0, :] == 0).all()


def test_window_and_causal_meet_nowhere(backend, rng):
    """Case 4: a window that starts after the row and a causal mask leave nothing together."""
    q, k, v = qkv(rng, queries=6, keys=9)
    mask = np.triu(np.ones((6, 9), bool), 1)
    assert (check(q, k, v, mask, is_causal=True) == 0).all()
    assert (check(q, k, v, np.tri(6, 9, -4, dtype=bool), window=(3, 2)) == 0).all()


def test_more_queries_than_keys_at_the_end(backend):
    """Case 36: queries aligned to the end; the leading rows see nothing."""
    v = np.array([10.0, 20.0], np.float32).reshape(1, 1, 2, 1)
    q, k = np.zeros((1, 1, 4, 3), np.float32), np.zeros((1, 1, 2, 3), np.float32)
    out, lse = sdpa(q, k, v, is_causal=True, q_offset="lower_right", return_lse=True)
    np.testing.assert_allclose(out.ravel(), [0, 0, 10, 15], rtol=1e-6)
    np.testing.assert_allclose(lse.ravel(), [-np.inf, -np.inf, 0, np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("given", [True, False], ids=["out", "fresh"])
@pytest.mark.parametrize("queries", [3, QUERY_BLOCK + 1, 300])
def test_rows_of_skipped_tiles_are_written(backend, rng, queries, given):
    """Case 42: whole blocks of rows without a key are still written."""
    q, k, v = qkv(rng, queries=queries, keys=1, dim=5, dv=6)
    for options in (
        {"is_causal": True, "q_offset": "lower_right"},
        {"kv_lengths": 0},
        {"kv_lengths": [0, 1]},
    ):
        out = np.full((2, 3, queries, 6), np.nan, np.float32)
        if given:
            sdpa(q, k, v, out=out, **options)
        else:
            del out
            out = sdpa(q, k, v, **options)
        assert np.isfinite(out).all()
        empty = out[0] if "kv_lengths" in options else out[..., :-1, :]
        assert (empty == 0).all()


def test_empty_rows_between_full_ones(backend, rng, dtype):
    """Rows without keys scattered over many tiles leave their neighbours alone."""
    n = QUERY_BLOCK + 5
    q, k, v = qkv(rng, dtype, lead=(), heads=2, queries=n, keys=KEY_TILE + 3, dim=8, dv=5)
    mask = rng.random((n, KEY_TILE + 3)) < 0.3
    dead = rng.random(n) < 0.5
    mask[dead] = False
    out = check(q, k, v, mask)
    assert (out[:, dead] == 0).all()
    assert (out[:, ~dead] != 0).any(axis=(0, 2)).all()


@pytest.mark.parametrize("queries", [1, 2, 9])
def test_no_keys_at_all(backend, rng, dtype, queries):
    """Sk = 0 is the same as a closed mask."""
    q, k, v = qkv(rng, dtype, queries=queries, keys=0)
    out, lse, weights = sdpa(q, k, v, return_lse=True, return_weights=True)
    assert out.shape == (2, 3, queries, 6) and (out == 0).all()
    assert lse.shape == (2, 3, queries) and np.isneginf(lse).all()
    assert weights.shape == (2, 3, queries, 0)
    lse = sdpa(q, k, v, sinks=draw(rng, 3), return_lse=True)[1]
    assert np.isfinite(lse).all()
