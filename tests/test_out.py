# SPDX-License-Identifier: MIT
# The out= argument: overlap with inputs, strides, identity; and no element left unwritten.
# Used by the suite, on every backend.
# A rejected out is in test_errors.py.
"""The result does not depend on where it is written, and is always written in full."""

import itertools

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
SHAPES = [(7, 7), (QUERY_BLOCK + 3, KEY_TILE + 5), (2, KEY_CHUNK + 1), (1, KEY_CHUNK + 1)]


def same(backend, got, wanted, context=""):
    if backend != "numpy":
        assert_bits_equal(got, wanted, context)
    assert_close(got, wanted.astype(np.float64), context=context)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", ["query", "query reversed", "query shifted", "query heads"])
def test_out_over_the_query(backend, rng, dtype, shape, target):
    """Case 118: out is the query, or shares part of its memory."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(2,), queries=queries, keys=keys, dim=8, dv=8)
    wanted = sdpa(q, k, v)
    base = np.zeros((2, 3, queries + 2, 8), dtype)
    base[:, :, :queries] = q
    q = base[:, :, :queries]
    out = {
        "query": q,
        "query reversed": q[:, :, ::-1],
        "query shifted": base[:, :, 2:],
        "query heads": q[:, ::-1],
    }[target]
    assert sdpa(q, k, v, out=out) is out
    assert_bits_equal(out, wanted)


@pytest.mark.parametrize("queries", [7, QUERY_BLOCK + 3, KEY_TILE + 5])
@pytest.mark.parametrize("target", ["key", "value", "value reversed", "value half"])
def test_out_over_key_or_value(backend, rng, dtype, queries, target):
    """Case 118: later rows still need what earlier rows would overwrite."""
    q, k, v = qkv(rng, dtype, lead=(2,), queries=queries, keys=queries, dim=8, dv=8)
    wanted = sdpa(q, k, v, is_causal=True)
    half = queries // 2
    base = np.zeros((2, 3, queries + half, 8), dtype)
    base[:, :, :queries] = v
    v = base[:, :, :queries]
    out = {"key": k, "value": v, "value reversed": v[:, :, ::-1], "value half": base[:, :, half:]}
    assert sdpa(q, k, v, is_causal=True, out=out[target]) is out[target]
    assert_bits_equal(out[target], wanted)


@pytest.mark.parametrize("name", ["bias", "attn_mask"])
def test_out_over_a_mask(backend, rng, dtype, name):
    """Case 118: out is the memory of the float mask."""
    n = KEY_TILE + 5
    q, k, v = qkv(rng, dtype, lead=(2,), heads=3, queries=9, keys=n, dv=n)
    bias = draw(rng, (2, 3, 9, n), dtype)
    wanted = sdpa(q, k, v, **{name: bias})
    assert_bits_equal(sdpa(q, k, v, **{name: bias}, out=bias), wanted)


def test_out_over_sinks_and_lengths(backend, rng):
    """Case 118: small arguments may share memory with out, too."""
    q, k, v = qkv(rng, lead=(2,), heads=3, queries=2, keys=7, dv=1)
    memory = np.array([0.5, 1.0, -1.0, *[0.0] * 9], np.float32)
    wanted = sdpa(q, k, v, sinks=memory[:3].copy(), alibi_slopes=memory[1:4].copy())
    out = memory.reshape(2, 3, 2, 1)
    sdpa(q, k, v, sinks=memory[:3], alibi_slopes=memory[1:4], out=out)
    assert_bits_equal(out, wanted)


def strided_outs(shape, dtype):
    b, h, s, d = shape
    yield "C", np.full(shape, np.nan, dtype)
    yield "F", np.asfortranarray(np.full(shape, np.nan, dtype))
    yield "wider", np.full((b, h, s + 2, d + 3), np.nan, dtype)[:, :, 1:-1, 2:-1]
    yield "inner step", np.full((b, h, s, 2 * d), np.nan, dtype)[..., ::2]
    yield "rows step", np.full((b, h, 3 * s, d), np.nan, dtype)[:, :, ::3]
    yield "reversed", np.full(shape, np.nan, dtype)[::-1, ::-1, ::-1, ::-1]
    yield "heads inside", np.full((b, s, h, d), np.nan, dtype).swapaxes(1, 2)
    raw = np.empty(int(np.prod(shape)) * np.dtype(dtype).itemsize + 1, np.uint8)[1:]
    yield "misaligned", raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_out_with_any_strides(backend, rng, dtype, shape):
    """Every stride and alignment of out; the gaps between its elements stay untouched."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(2,), queries=queries, keys=keys)
    wanted = sdpa(q, k, v)
    for name, out in strided_outs(wanted.shape, dtype):
        base = out.base if out.base is not None and out.base.dtype == dtype else out
        got, lse = sdpa(q, k, v, out=out, return_lse=True)
        assert got is out, name
        same(backend, out, wanted, name)
        if name in ("wider", "inner step", "rows step"):
            assert np.isnan(base).sum() == base.size - out.size, name


def test_out_in_bshd_and_low_ranks(backend, rng, dtype):
    """out has the layout and rank of the query."""
    q, k, v = (x.swapaxes(1, 2).copy() for x in qkv(rng, dtype))
    out = np.full((2, 5, 3, 6), np.nan, dtype)
    assert sdpa(q, k, v, layout="bshd", out=out) is out
    same(backend, out, sdpa(q, k, v, layout="bshd"))
    for given in ((q[0], k[0], v[0]), (q[0, :, 0], k[0, :, 0], v[0, :, 0])):
        wanted = sdpa(*given, layout="bshd")
        out = np.full(wanted.shape, np.nan, dtype)
        assert sdpa(*given, layout="bshd", out=out) is out
        same(backend, out, wanted)


def test_out_shape_after_broadcast(backend, rng):
    """Leading axes of out are those after broadcasting."""
    q, k, v = draw(rng, (1, 3, 5, 4)), draw(rng, (2, 3, 7, 4)), draw(rng, (2, 3, 7, 6))
    out = np.full((2, 3, 5, 6), np.nan, np.float32)
    assert sdpa(q, k, v, out=out) is out
    assert_bits_equal(out, sdpa(q, k, v))
    with pytest.raises(ValueError, match="out"):
        sdpa(q, k, v, out=out[:1])


def fill_freed_memory(like, filler):
    """Leave `filler` in the memory that the next allocations of these sizes will get."""
    blocks = [np.full(x.shape, filler, x.dtype) for x in like for _ in range(4)]
    blocks += [np.full(n, filler, np.float32) for n in (1 << 8, 1 << 12, 1 << 16)]
    del blocks


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "lower": {"is_causal": True, "q_offset": "lower_right"},
    "lengths": {"kv_lengths": [3, 0]},
    "window": {"window": (1, 0), "q_offset": 2},
}


@pytest.mark.parametrize("shape", [*SHAPES, (300, 1), (5, 0)])
@pytest.mark.parametrize("masks", list(MASKS))
def test_nothing_is_left_unwritten(backend, rng, dtype, shape, masks):
    """Case 92: three equal calls on memory with other contents give the same bits."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(2,), queries=queries, keys=keys)
    options = dict(MASKS[masks])
    if keys < 3 and masks == "lengths":
        options["kv_lengths"] = [min(keys, 1), 0]
    for extra in ({}, {"softcap": 2.0}, {"bias": draw(rng, (queries, keys))}):
        results = []
        for filler, weights in itertools.product((np.nan, 1e30, 0.0), (True,)):
            like = [x for r in results[:1] for x in r]
            fill_freed_memory(like, filler if dtype != np.float16 or filler != 1e30 else 6e4)
            results.append(
                sdpa(q, k, v, return_lse=True, return_weights=weights, **options, **extra)
            )
        for other in results[1:]:
            for one, two in zip(results[0], other):
                assert_bits_equal(one, two)
        assert not any(np.isnan(x).any() for x in results[0])
