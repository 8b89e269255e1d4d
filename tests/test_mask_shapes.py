# SPDX-License-Identifier: MIT
# How masks and biases broadcast, and where their elements lie.
# Used by the suite, on every backend.
# What they may be made of is in test_mask_types.py.
"""Masks broadcast right-aligned to (..., Hq, Sq, Sk) and are read through their own strides."""

import itertools

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


@pytest.mark.parametrize("queries", [4, QUERY_BLOCK + 1])
def test_key_axis_of_one(backend, rng, queries):
    """Case 58: a term that is the same for all keys of a row changes nothing."""
    b, h, keys = 2, 3, KEY_TILE + 1
    q, k, v = qkv(rng, lead=(b,), heads=h, queries=queries, keys=keys)
    plain = sdpa(q, k, v).astype(np.float64)
    for shape in ((1, 1, queries, 1), (b, h, queries, 1), (1,), (), (queries, 1), (b, 1, 1, 1)):
        for kind in (np.float32, np.float64, np.float16):
            term = np.asarray(draw(rng, shape, kind))
            assert_close(sdpa(q, k, v, term), plain, context=str(shape))
            assert_close(sdpa(q, k, v, bias=term), plain, context=str(shape))
    rows = rng.random((b, 1, queries, 1)) < 0.5
    rows[:, :, 0] = False
    out = check(q, k, v, rows)
    assert (out[:, :, 0] == 0).all()


@pytest.mark.parametrize("shape", [(4, 7), (QUERY_BLOCK + 2, KEY_TILE + 3), (1, KEY_CHUNK + 2)])
@pytest.mark.parametrize("kind", ["float32", "bool", "float64"])
def test_every_broadcast(backend, rng, shape, kind):
    """Case 59: each axis of full size or 1, and fewer axes, equal the expanded copy."""
    b, h, (queries, keys) = 3, 5, shape
    q, k, v = qkv(rng, lead=(b,), heads=h, queries=queries, keys=keys, dim=6, dv=2)
    shapes = set(itertools.product({1, b}, {1, h}, {1, queries}, {1, keys}))
    shapes |= {s[4 - rank :] for s in shapes for rank in range(4)}
    for mask_shape in sorted(shapes, key=lambda s: (len(s), s)):
        mask = np.asarray(draw(rng, mask_shape, np.float64)).astype("float64")
        mask = np.asarray(mask < 0.8) if kind == "bool" else mask.astype(kind)
        full = np.broadcast_to(mask, (b, h, queries, keys)).copy()
        got = sdpa(q, k, v, mask)
        assert_close(got, sdpa(q, k, v, full).astype(np.float64), context=str(mask_shape))
        if backend != "numpy":
            assert_bits_equal(got, sdpa(q, k, v, full), str(mask_shape))
        if kind != "bool":
            assert_close(sdpa(q, k, v, bias=mask), got.astype(np.float64))
    want = expected(q, k, v, full)
    assert_close(got, want.out, slack=want.out_slack)


def test_rank_three_is_heads_first(backend, rng):
    """Rank 3 masks are (heads, queries, keys), also when heads equals the batch."""
    q, k, v = qkv(rng, lead=(3,), heads=3, queries=4, keys=7)
    mask = draw(rng, (3, 4, 7))
    assert_close(sdpa(q, k, v, mask), sdpa(q, k, v, mask[None]).astype(np.float64))
    assert_close(sdpa(q, k, v, mask), expected(q, k, v, np.stack([mask] * 3)).out)


def test_masks_for_lower_and_higher_ranks(backend, rng, dtype):
    """Inputs of rank 2, 3 and 5 take masks broadcastable to their own scores."""
    q, k, v = qkv(rng, dtype, lead=(), heads=3, queries=4, keys=7)
    check(q, k, v, draw(rng, (3, 4, 7)), weights=True)
    check(q, k, v, rng.random((1, 7)) < 0.7, weights=True)
    check(q[0], k[0], v[0], draw(rng, (4, 7)), weights=True)
    check(q[0], k[0], v[0], rng.random(7) < 0.7, bias=draw(rng, (4, 1)), weights=True)
    q, k, v = qkv(rng, dtype, lead=(2, 5), heads=3, queries=4, keys=7)
    for shape in ((2, 1, 1, 4, 7), (5, 3, 1, 7), (2, 5, 3, 4, 7), (3, 4, 1), (7,)):
        check(q, k, v, draw(rng, shape), context=str(shape), weights=True)
        check(q, k, v, np.asarray(rng.random(shape) < 0.7), context=str(shape))


def test_padding_vector_hides_columns(backend, rng, dtype):
    """Case 62: a vector over keys hides keys, not query rows; all sizes differ."""
    q, k, v = qkv(rng, dtype, lead=(2,), heads=3, queries=4, keys=5, dim=6, dv=7)
    padding = np.array([True, True, True, False, False])
    k[..., 3:, :] = np.nan
    v[..., 3:, :] = 100
    got = check(q, k, v, padding)
    assert_close(got, expected(q, k[..., :3, :], v[..., :3, :]).out)


WRONG = [
    (10, 15),
    (10, 25),
    (9, 20),
    (20, 10),
    (2, 10, 20),
    (1, 1, 1, 10, 20),
    (0, 20),
    (21,),
    (0,),
]
WRONG += [(10, 0), (3, 1, 1, 1), (1, 2, 1, 20), (2, 1, 20)]


@pytest.mark.parametrize("shape", WRONG, ids=str)
@pytest.mark.parametrize("name", ["attn_mask", "bias"])
def test_wrong_shapes(backend, rng, shape, name):
    """Case 63: a mask that does not fit is refused with both shapes in the message."""
    q, k, v = qkv(rng, lead=(1,), heads=1, queries=10, keys=20)
    for kind in (np.float32,) if name == "bias" else (np.float32, bool):
        with pytest.raises(ValueError, match=name) as caught:
            sdpa(q, k, v, **{name: np.zeros(shape, kind)})
        message = str(caught.value)
        assert "20" in message and "10" in message
        assert str(shape) in message or all(str(n) in message for n in shape)


@pytest.mark.parametrize("shape", [(3, 9), (QUERY_BLOCK + 2, KEY_TILE + 3), (1, KEY_CHUNK + 2)])
@pytest.mark.parametrize("kind", ["bool", "float32", "float64", "float16"])
def test_views_of_larger_masks(backend, rng, shape, kind):
    """Case 65: row strides other than Sk, column steps, transposes, reversed and zero strides."""
    queries, keys = shape
    q, k, v = qkv(rng, lead=(2,), heads=3, queries=queries, keys=keys)
    wide = draw(rng, (2, 3, 2 * queries + 3, 2 * keys + 29), np.float32, 3)
    wide = wide < 1 if kind == "bool" else wide.astype(kind)
    tall = np.ascontiguousarray(wide.swapaxes(2, 3))
    backwards = wide[::-1, ::-1, queries - 1 :: -1, keys - 1 :: -1]
    views = {
        "corner": wide[:, :, :queries, :keys],
        "middle": wide[:, :, 2 : queries + 2, 5 : keys + 5],
        "columns 2": wide[:, :, :queries, : 2 * keys : 2],
        "rows 2": wide[:, :, : 2 * queries : 2, :keys],
        "transposed": tall[:, :, :keys, :queries].swapaxes(2, 3),
        "reversed": backwards,
        "one row": wide[:1, :, 3:4, 1 : keys + 1],
        "one column": wide[:, 1:2, :queries, 4:5],
        "heads swapped": np.ascontiguousarray(wide.swapaxes(0, 1)).swapaxes(0, 1)[
            ..., :queries, :keys
        ],
    }
    for name, view in views.items():
        compact = np.ascontiguousarray(view)
        got = sdpa(q, k, v, view)
        assert_close(got, sdpa(q, k, v, compact).astype(np.float64), context=name)
        if backend != "numpy":
            assert_bits_equal(got, sdpa(q, k, v, compact), name)
        if kind != "bool":
            assert_close(sdpa(q, k, v, bias=view), got.astype(np.float64), context=name)
        want = expected(q, k, v, compact)
        assert_close(got, want.out, slack=want.out_slack, context=name)
