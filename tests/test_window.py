# SPDX-License-Identifier: MIT
# Sliding windows: counts, bounds, and their company with offsets and other masks.
# Used by the suite, on every backend.
# Per-row windows with arbitrary centres are another function's matter.
"""window=(left, right) counts the keys besides the one at the row's own position, inclusively."""

import itertools

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


def equal_scores(n, dtype):
    zeros = np.zeros((1, 1, n, 3), dtype)
    return zeros, zeros, np.arange(n).astype(dtype).reshape(1, 1, n, 1)


def test_left_counts_besides_the_own_key(backend, dtype):
    """Case 46: left=2 is the own key and two before it."""
    q, k, v = equal_scores(8, dtype)
    got = sdpa(q, k, v, is_causal=True, window=(2, -1)).ravel()
    assert_close(got, np.array([0, 0.5, 1, 2, 3, 4, 5, 6.0]))
    assert_bits_equal(sdpa(q, k, v, window=(2, 0)).ravel(), got)
    assert_close(sdpa(q, k, v, window=(0, 0)).ravel(), np.arange(8.0))
    assert_close(sdpa(q, k, v, window=(0, 1)).ravel(), np.array([*np.arange(0.5, 7), 7]))
    assert_close(sdpa(q, k, v, window=1).ravel(), np.array([0.5, *np.arange(1, 7), 6.5]))


@pytest.mark.parametrize("n", [8, 2 * KEY_TILE + 5])
def test_widths_around_tile_edges(backend, rng, sample, n):
    """Case 46: every width around a tile and around the whole length, on either side."""
    q, k, v = qkv(rng, lead=(), heads=2, queries=n, keys=n, dim=4, dv=3)
    widths = [1, KEY_TILE - 1, KEY_TILE, KEY_TILE + 1, n, n + 5]
    for width in sample(sorted(set(widths)), 3):
        check(q, k, v, is_causal=True, window=(width, -1), context=f"left {width}")
        check(q, k, v, window=(0, width), context=f"right {width}")
        check(q, k, v, window=width, context=f"both {width}")


@pytest.mark.parametrize("queries", [1, 4, QUERY_BLOCK + 1])
def test_each_row_sees_exactly_its_window(backend, rng, queries):
    """Case 46: the set of visible keys, key by key."""
    keys = 2 * KEY_TILE + 3
    q, k, v = qkv(rng, lead=(), heads=1, queries=queries, keys=keys, dim=4, dv=keys)
    v[:] = np.eye(keys, dtype=np.float32) * 1e6
    i, j = np.arange(queries)[:, None], np.arange(keys)
    for (left, right), offset in itertools.product(
        [(0, 0), (1, 2), (5, -1), (-1, 4), (KEY_TILE, 1), (3, KEY_TILE + 2)],
        [0, -2, KEY_TILE - 1, KEY_TILE + 7, keys - 2, keys + 9],
    ):
        seen = sdpa(q, k, v, window=(left, right), q_offset=offset)[0] != 0
        p = i + offset
        wanted = np.ones((queries, keys), bool)
        if left != -1:
            wanted &= j >= p - left
        if right != -1:
            wanted &= j <= p + right
        assert (seen == wanted).all(), (left, right, offset)


@pytest.mark.parametrize("open_", [None, -1, (-1, -1), (None, None), (1 << 62, 1 << 62)])
def test_unbounded_windows(backend, rng, open_):
    """None and -1 bound nothing; huge counts do not overflow."""
    q, k, v = qkv(rng, queries=5, keys=9)
    for options in ({}, {"is_causal": True, "q_offset": 2}):
        whole = sdpa(q, k, v, **options).astype(np.float64)
        assert_close(sdpa(q, k, v, window=open_, **options), whole)
    left = open_ if np.ndim(open_) == 0 else open_[0]
    upto = sdpa(q, k, v, is_causal=True).astype(np.float64)
    assert_close(sdpa(q, k, v, window=(left, 0)), upto)


@pytest.mark.parametrize("kind", [int, np.int32, np.int64, np.uint8])
def test_integer_types(backend, rng, kind):
    """Case 117: any integer type, in a tuple, a list or an array."""
    q, k, v = qkv(rng, queries=5, keys=9)
    wanted = sdpa(q, k, v, window=(2, 1))
    for window in ((kind(2), kind(1)), [kind(2), kind(1)]):
        assert_bits_equal(sdpa(q, k, v, window=window), wanted)
    assert_bits_equal(sdpa(q, k, v, window=kind(2)), sdpa(q, k, v, window=(2, 2)))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kv_heads", [2, 6])
def test_decode_with_a_window(backend, rng, dtype, queries, kv_heads):
    """A window at the end, in the middle and across chunks of a long cache."""
    keys = 2 * KEY_CHUNK + 11
    q, k, v = qkv(rng, dtype, lead=(2,), heads=6, kv_heads=kv_heads, queries=queries, keys=keys)
    for window in ((7, 0), (KEY_CHUNK, 0), (KEY_CHUNK + 1, 3), (-1, 0)):
        for offset in ("lower_right", KEY_CHUNK, [3, keys - queries]):
            check(q, k, v, window=window, q_offset=offset, context=f"{window} {offset}")


def test_together_with_everything_else(backend, rng, dtype):
    """The window is one of several masks that all apply."""
    q, k, v = qkv(rng, dtype, lead=(2,), queries=QUERY_BLOCK + 2, keys=KEY_TILE + 9)
    mask = rng.random((2, 1, 1, KEY_TILE + 9)) < 0.7
    bias = rng.standard_normal((3, 1, KEY_TILE + 9)).astype(np.float32)
    check(
        q, k, v, mask, bias=bias, window=(20, 5), is_causal=True, q_offset="lower_right",
        kv_lengths=[KEY_TILE, 30], softcap=5.0, sinks=np.array([0.0, -np.inf, 1.0], np.float32),
        weights=True,
    )  # fmt: skip
