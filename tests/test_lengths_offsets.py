# SPDX-License-Identifier: MIT
# Key lengths and query offsets per batch entry.
# Used by the suite, on every backend.
# The causal mask itself is in test_causal.py; wrong values are in test_errors.py.
"""kv_lengths cut the keys of an entry, q_offset moves its queries; both may be arrays."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
LENGTHS = [24, 125, 53, 28, 77, 96, 13, 114]


@pytest.mark.parametrize("queries", [1, 5, QUERY_BLOCK + 1])
def test_padded_batch(backend, rng, dtype, queries):
    """Case 89: padding of 1e6 behind each sequence; equal to each sequence on its own."""
    q, k, v = qkv(rng, dtype, lead=(8,), heads=2, queries=queries, keys=128, dim=8, dv=5)
    for entry, length in enumerate(LENGTHS):
        k[entry, :, length:] = v[entry, :, length:] = 6e4
    for causal in (False, True):
        out = check(q, k, v, kv_lengths=LENGTHS, is_causal=causal, weights=True)
        for e, n in enumerate(LENGTHS):
            alone = sdpa(q[e], k[e, :, :n], v[e, :, :n], is_causal=causal)
            assert_close(out[e], alone.astype(np.float64), context=f"{e}")


def integer_forms(numbers):
    """The same integers in every form that an argument may have."""
    for kind in (np.int8, np.int16, np.int32, np.int64, np.intp, np.uint8, np.uint64, ">i4", ">i8"):
        yield np.dtype(kind).str, np.array(numbers, kind)
    yield "list", list(numbers)
    yield "tuple", tuple(numbers)
    yield "step", np.repeat(np.array(numbers), 2)[::2]
    yield "reversed", np.array(numbers)[::-1].copy()[::-1]


def test_integer_types(backend, rng):
    """Case 117: any integer dtype, lists, tuples, ranges and strided arrays."""
    q, k, v = qkv(rng, lead=(3,), queries=4, keys=9)
    wanted = sdpa(q, k, v, kv_lengths=[9, 0, 5], q_offset=[1, 3, 2], is_causal=True)
    for name, lengths in integer_forms([9, 0, 5]):
        got = sdpa(q, k, v, kv_lengths=lengths, q_offset=[1, 3, 2], is_causal=True)
        assert_bits_equal(got, wanted, name)
    for name, offsets in integer_forms([1, 3, 2]):
        got = sdpa(q, k, v, kv_lengths=[9, 0, 5], q_offset=offsets, is_causal=True)
        assert_bits_equal(got, wanted, name)
    wanted = sdpa(q, k, v, kv_lengths=[2, 3, 4], q_offset=[2, 3, 4], is_causal=True)
    got = sdpa(q, k, v, kv_lengths=range(2, 5), q_offset=range(2, 5), is_causal=True)
    assert_bits_equal(got, wanted)


@pytest.mark.parametrize("one", [4, np.int64(4), np.uint8(4), np.array(4), np.array(4, ">i2")])
def test_scalars_stand_for_every_entry(backend, rng, one):
    """Case 117: a scalar length or offset of any integer type."""
    q, k, v = qkv(rng, lead=(3,), queries=4, keys=9)
    wanted = sdpa(q, k, v, kv_lengths=[4, 4, 4], q_offset=[4, 4, 4], is_causal=True)
    assert_bits_equal(sdpa(q, k, v, kv_lengths=one, q_offset=one, is_causal=True), wanted)
    check(q[0], k[0], v[0], kv_lengths=4, q_offset=-1, is_causal=True, weights=True)
    check(q[0, 0], k[0, 0], v[0, 0], kv_lengths=4, q_offset=2, is_causal=True, weights=True)


def test_several_leading_axes(backend, rng, dtype):
    """One number per batch entry, in the shape of the leading axes or broadcastable to it."""
    q, k, v = qkv(rng, dtype, lead=(2, 3), queries=4, keys=9)
    full = rng.integers(0, 10, (2, 3))
    for numbers in (full, full[:1], full[:, :1], full[0]):
        check(q, k, v, kv_lengths=numbers, is_causal=True, context=f"{numbers}", weights=True)
        check(q, k, v, q_offset=numbers - 3, is_causal=True, context=f"{numbers}")
        check(q, k, v, kv_lengths=numbers, q_offset=full - 2, window=(3, 2))
        check(q, k, v, kv_lengths=numbers, q_offset="lower_right", is_causal=True)
    check(q[:1], k[:, :1], v, kv_lengths=full, q_offset=full, is_causal=True)


@pytest.mark.parametrize("queries", [1, 4, QUERY_BLOCK + 1])
def test_lower_right_is_length_minus_queries(backend, rng, queries):
    """The last query sits at the last key of its own entry."""
    keys = KEY_TILE + 9
    lengths = np.array([keys, 3, 0, KEY_TILE])
    q, k, v = qkv(rng, lead=(4,), queries=queries, keys=keys)
    for options in ({"is_causal": True}, {"window": (5, 1)}):
        got = check(q, k, v, q_offset="lower_right", kv_lengths=lengths, weights=True, **options)
        same = sdpa(q, k, v, q_offset=lengths - queries, kv_lengths=lengths, **options)
        assert_bits_equal(got, same)
        check(q, k, v, q_offset="lower_right", **options)


@pytest.mark.parametrize("offset", [-1, -3, -100, 5, 1000, -(1 << 62), (1 << 62), (1 << 63) - 1])
@pytest.mark.parametrize("shape", [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 1)])
def test_offsets_of_any_size(backend, rng, offset, shape):
    """Offsets are not clamped and do not overflow."""
    queries, keys = shape
    q, k, v = qkv(rng, queries=queries, keys=keys)
    for options in ({"is_causal": True}, {"window": (3, 2)}, {"is_causal": True, "window": 4}):
        check(q, k, v, q_offset=offset, context=str(options), weights=True, **options)
        check(q, k, v, q_offset=[offset, 2], context=str(options), **options)
    assert_bits_equal(sdpa(q, k, v, q_offset=offset), sdpa(q, k, v))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_ragged_decode(backend, rng, dtype, queries, kv_heads):
    """Caches of very different lengths in one decode call."""
    keys = 2 * KEY_CHUNK + 5
    q, k, v = qkv(rng, dtype, lead=(5,), heads=4, kv_heads=kv_heads, queries=queries, keys=keys)
    lengths = [0, 1, KEY_CHUNK, KEY_CHUNK + 1, keys]
    for e, n in enumerate(lengths):
        k[e, :, n:] = np.nan
        v[e, :, n:] = np.inf
    check(q, k, v, kv_lengths=lengths)
    check(q, k, v, kv_lengths=lengths, is_causal=True, q_offset="lower_right", weights=True)
    check(q, k, v, kv_lengths=lengths, bias=draw(rng, (4, 1, keys)), softcap=2.0)


def test_lengths_meet_masks(backend, rng, dtype):
    """A length is one of several masks that all apply."""
    q, k, v = qkv(rng, dtype, lead=(2,), queries=QUERY_BLOCK + 1, keys=KEY_TILE + 5)
    v[0, :, KEY_TILE:] = v[1, :, 3:] = 6e4
    mask = rng.random((QUERY_BLOCK + 1, KEY_TILE + 5)) < 0.5
    got = check(q, k, v, mask, kv_lengths=[KEY_TILE, 3], weights=True)
    closed = mask & (np.arange(KEY_TILE + 5) < 3)
    want = expected(q[1], k[1], v[1], closed)
    assert_close(got[1], want.out, slack=want.out_slack)
