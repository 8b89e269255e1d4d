# SPDX-License-Identifier: MIT
# NaN and infinity: hidden ones have no effect, visible ones stay in their row.
# Used by the suite, on every backend.
# Extreme but finite numbers are in test_online_softmax.py.
"""Hidden data may be uninitialised memory; visible NaN must never turn into zeros."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
# (queries, keys): short, prefill over several tiles, decode over several chunks.
SHAPES = [(5, 10), (QUERY_BLOCK + 3, 2 * KEY_TILE + 5), (1, 2 * KEY_CHUNK + 7), (3, KEY_CHUNK + 1)]
NOT_FINITE = [np.nan, np.inf, -np.inf]


def assert_rows_kept(backend, got, clean, where, dtype):
    """The entries `where` have the clean call's bits (within tolerance on NumPy or half types)."""
    if backend != "numpy" and np.dtype(dtype).itemsize >= 4:
        assert_bits_equal(got[where], clean[where])
    else:
        assert_close(got[where], clean[where].astype(np.float64))


@pytest.mark.parametrize("shape", SHAPES)
def test_nan_in_a_query(backend, rng, dtype, shape):
    """Case 15: the row of a NaN query is NaN, not zeros; the others do not notice."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    clean, clean_lse = sdpa(q, k, v, return_lse=True)
    row = min(3, queries - 1)
    q[0, 0, row, 2] = np.nan
    got, lse, weights = sdpa(q, k, v, return_lse=True, return_weights=True)
    assert np.isnan(got[0, 0, row]).all() and np.isnan(lse[0, 0, row])
    assert np.isnan(weights[0, 0, row]).all()
    rest = np.ones((2, 3, queries), bool)
    rest[0, 0, row] = False
    got = sdpa(q, k, v)
    assert np.isnan(got[0, 0, row]).all()
    assert_rows_kept(backend, got, clean, rest, dtype)
    assert_rows_kept(backend, lse, clean_lse, rest, lse.dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_not_finite_key(backend, rng, dtype, shape, bad):
    """Case 15: a live key that is not finite spoils the rows that see it and no others."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    offset = keys - queries
    at = keys - max(1, queries // 2)
    clean = sdpa(q, k, v, is_causal=True, q_offset=offset)
    k[1, 2, at, 1] = bad
    got = sdpa(q, k, v, is_causal=True, q_offset=offset)
    sees = np.zeros((2, 3, queries), bool)
    sees[1, 2] = np.arange(queries) + offset >= at
    assert sees.any()
    if np.isnan(bad):
        assert np.isnan(got[sees]).all()
    assert_rows_kept(backend, got, clean, ~sees, dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_nan_in_a_value(backend, rng, dtype, shape):
    """Case 15: a live NaN value reaches its own output column of the rows that see it."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    offset = keys - queries
    at = keys - max(1, queries // 2)
    clean = sdpa(q, k, v, is_causal=True, q_offset=offset)
    v[1, 2, at, 4] = np.nan
    got = sdpa(q, k, v, is_causal=True, q_offset=offset)
    bad = np.zeros((2, 3, queries, 6), bool)
    bad[1, 2, :, 4] = np.arange(queries) + offset >= at
    assert_bits_equal(np.isnan(got), bad)
    assert_close(got[~bad], clean[~bad].astype(np.float64))
    rows = bad.any(axis=-1)
    assert_rows_kept(backend, got, clean, ~rows, dtype)


@pytest.mark.parametrize("queries, heads", [(3, 3), (40, 3)])
def test_hidden_keys_of_a_nan_row_have_weight_zero(backend, rng, real, queries, heads):
    """Also where only other rows of its block see them."""
    q, k, v = qkv(rng, real, heads=heads, queries=queries, keys=84)
    k[..., 83, 0] = np.nan
    offset = 84 - queries
    options = {"window": (12, None), "q_offset": offset}
    _, weights = sdpa(q, k, v, return_weights=True, **options)
    sees = np.arange(84) >= np.arange(queries)[:, None] + offset - 12
    assert_bits_equal(np.isnan(weights), np.broadcast_to(sees, weights.shape))
    assert not weights[..., ~sees].any()


@pytest.mark.parametrize("is_masked", [True, False])
def test_nan_leaves_the_sign_of_zero(backend, is_masked):
    """A row that is done again multiplies fewer hidden keys; sums that underflowed show it."""
    q = np.ones((1, 1, 16, 1), np.float32)
    k, v = np.zeros((2, 1, 1, 1024, 1), np.float32)
    k[0, 0, 256:512] = 83.0
    v[0, 0, [0, 752]] = -1e-12  # products that underflow to -0, in different tiles
    poisoned = v.copy()
    poisoned[0, 0, 755] = np.nan
    options = {"is_causal": True, "q_offset": 752, "scale": 1.0}
    if is_masked:
        options["attn_mask"] = np.arange(1024) != 755
    clean, dirty = (sdpa(q, k, x, **options) for x in (v, poisoned))
    rows = slice(None) if is_masked else slice(0, 3)  # the others see key 755
    assert_bits_equal(dirty[:, :, rows], clean[:, :, rows])


def hidden_forms(queries, keys, first):
    """Options that hide the keys from `first` on, from every row."""
    open_ = np.arange(keys) < first
    return {
        "bool": {"attn_mask": np.broadcast_to(open_, (queries, keys))},
        "key padding": {"attn_mask": open_},
        "float": {"attn_mask": np.where(open_, 0.0, -np.inf).astype(np.float32)},
        "bias": {"bias": np.where(open_, 0.0, -np.inf)},
        "causal": {"is_causal": True, "q_offset": first - queries},
        "lengths": {"kv_lengths": first},
        "window": {"window": (-1, 0), "q_offset": first - queries},
    }


@pytest.mark.parametrize("form", list(hidden_forms(1, 2, 1)))
@pytest.mark.parametrize("shape", SHAPES)
def test_hidden_data_may_be_anything(backend, rng, dtype, shape, form):
    """Case 17: NaN and infinities in hidden keys and values: the bits of zeros there."""
    queries, keys = shape
    first = keys // 2
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    options = hidden_forms(queries, keys, first)[form]
    k[..., first:, :] = 0
    v[..., first:, :] = 0
    clean = sdpa(q, k, v, return_lse=True, return_weights=True, **options)
    for bad in NOT_FINITE:
        k[..., first:, :] = bad
        v[..., first:, :] = bad
        got = sdpa(q, k, v, return_lse=True, return_weights=True, **options)
        for one, other in zip(got, clean):
            assert_bits_equal(one, other, f"{form} {bad}")
    check(q, k, v, context=form, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_hidden_from_some_rows_only(backend, rng, real, shape):
    """Case 17: each row ignores what it may not see although others of its tile see it."""
    queries, keys = shape
    q, k, v = qkv(rng, real, lead=(), heads=2, queries=queries, keys=keys)
    mask = rng.random((2, queries, keys)) < 0.6
    blind = rng.random(queries) < 0.5
    blind[0] = True
    at = [1, keys // 2, keys - 1]
    for j in at:
        mask[:, blind, j] = False
        mask[:, ~blind, j] = True
    clean = sdpa(q, k, v, mask)
    k[:, at[0]] = np.nan
    v[:, at[1]] = np.nan
    v[:, at[2], 3] = np.inf
    got = sdpa(q, k, v, mask)
    assert np.isnan(got[:, ~blind]).all()
    assert_rows_kept(backend, got, clean, np.broadcast_to(blind, (2, queries)), real)
    assert np.isfinite(got[:, blind]).all()


def test_tails_past_the_length_per_entry(backend, rng, dtype):
    """Case 17: every batch entry ignores its own tail."""
    q, k, v = qkv(rng, dtype, lead=(4,), queries=3, keys=KEY_TILE + 9)
    lengths = [0, 1, KEY_TILE, KEY_TILE + 9]
    for bad in NOT_FINITE:
        for entry, length in enumerate(lengths):
            k[entry, :, length:] = v[entry, :, length:] = bad
        check(q, k, v, kv_lengths=lengths, weights=True, context=str(bad))


@pytest.mark.parametrize("term", ["bias", "attn_mask"])
def test_nan_in_a_visible_float_term(backend, rng, dtype, term):
    """NaN added to a score that the row sees makes that row NaN."""
    q, k, v = qkv(rng, dtype, lead=(), queries=4, keys=9)
    added = np.zeros((4, 9), np.float32)
    added[2, 5] = np.nan
    got = sdpa(q, k, v, **{term: added})
    assert_bits_equal(np.isnan(got).all(axis=-1), np.isnan(got).any(axis=-1))
    assert np.isnan(got[:, 2]).all() and np.isfinite(got[:, [0, 1, 3]]).all()
    hidden = np.ones((4, 9), bool)
    hidden[2, 5] = False
    other = {"bias": added, "attn_mask": hidden}
    assert np.isfinite(sdpa(q, k, v, **other)).all()
    assert np.isfinite(sdpa(q, k, v, **{term: added}, kv_lengths=5)).all()


def test_empty_row_stays_zero_although_its_query_is_nan(backend, rng, dtype):
    """Emptiness is decided by the masks: no key, no NaN."""
    q, k, v = qkv(rng, dtype, queries=4, keys=7)
    q[:, :, 1] = np.nan
    mask = np.ones((4, 7), bool)
    mask[1] = False
    out, lse = sdpa(q, k, v, mask, return_lse=True)
    assert (out[:, :, 1] == 0).all() and np.isneginf(lse[:, :, 1]).all()
    assert np.isfinite(out).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_products_beyond_the_range(backend, rng, real, shape, sign):
    """A score that overflows follows IEEE in its own row and leaves the others alone."""
    queries, keys = shape
    q, k, v = qkv(rng, real, lead=(), heads=2, queries=queries + 1, keys=keys)
    k[:, keys // 3] = 1e20 if real == np.float32 else 1e160
    q[:, 1] = 0
    clean = sdpa(q, k, v)
    q[:, 1] = sign * (1e25 if real == np.float32 else 1e165)
    out, lse = sdpa(q, k, v, return_lse=True)
    if sign > 0:
        assert (np.isnan(lse[:, 1]) | np.isposinf(lse[:, 1])).all()
    assert not np.isneginf(lse[:, 1]).any()
    rest = np.broadcast_to(np.arange(queries + 1) != 1, lse.shape)
    assert_rows_kept(backend, out, clean, rest, real)
