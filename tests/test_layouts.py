# SPDX-License-Identifier: MIT
# Strides, orders of axes, ranks and leading axes of query, key and value.
# Used by the suite, on every backend.
# Alignment, byte order and read-only memory are in test_buffers.py, masks in test_mask_shapes.py.
"""Any strides give the result of the compact copies."""

import itertools
import mmap
import sys

import numpy as np
import pytest
from cases import ALL_SIZES, KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
SHAPES = [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (2, KEY_CHUNK + 5)]


def assert_same(backend, views, copies, context="", **options):
    """The views give the copies' result: bit for bit on the compiled backends in float32."""
    got, wanted = sdpa(*views, **options), sdpa(*copies, **options)
    if backend != "numpy" and copies[0].dtype == np.float32:
        assert_bits_equal(got, wanted, context)
    assert_close(got, wanted.astype(np.float64), context=context)
    want = expected(*copies, **options)
    assert_close(got, want.out, slack=want.out_slack, context=context)


def inner_step(x):
    big = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
    big[..., ::2] = x
    return big[..., ::2]


def inner_swapped(x):
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def rows_step(x):
    big = np.full((*x.shape[:-2], 3 * x.shape[-2], x.shape[-1] + 5), np.nan, x.dtype)
    big[..., 1::3, 2:-3] = x
    return big[..., 1::3, 2:-3]


def heads_inside(x):
    return np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)


def backwards(x):
    return x[..., ::-1, ::-1, :].copy()[..., ::-1, ::-1, :]


def inner_backwards(x):
    return x[..., ::-1].copy()[..., ::-1]


VIEWS = [inner_step, inner_swapped, np.asfortranarray, rows_step, heads_inside, backwards,
         inner_backwards]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("view", VIEWS, ids=lambda f: f.__name__)
def test_each_operand_strided(backend, rng, dtype, view, shape):
    """Cases 66, 67, 72: every subset of the operands seen through the same kind of view."""
    queries, keys = shape
    copies = qkv(rng, dtype, lead=(2,), heads=4, kv_heads=2, queries=queries, keys=keys, dim=8)
    for chosen in itertools.product((False, True), repeat=3):
        views = [view(x) if pick else x for x, pick in zip(copies, chosen)]
        for one, other in zip(views, copies):
            assert (one == other).all()
        assert_same(backend, views, copies, str(chosen), is_causal=True)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_heads_last_projection(backend, rng, which):
    """Case 67: one operand comes from a (batch, length, heads * size) projection."""
    q, k, v = (draw(rng, (1, 16, 62, 128)) for _ in range(3))
    copies = [q, k, v]
    flat = np.ascontiguousarray(copies[which].swapaxes(1, 2)).reshape(1, 62, 16 * 128)
    views = list(copies)
    views[which] = flat.reshape(1, 62, 16, 128).swapaxes(1, 2)
    assert_same(backend, views, copies)


def test_each_head_finds_its_own_data(backend, rng, dtype):
    """Case 69: values constant per head in a transposed view."""
    q, k = draw(rng, (3, 7, 4, 5), dtype), draw(rng, (3, 9, 4, 5), dtype)
    number = 10 * np.arange(3)[:, None] + np.arange(4)
    v = np.broadcast_to(number[:, None, :, None], (3, 9, 4, 6)).astype(dtype)
    out = sdpa(*(x.swapaxes(1, 2) for x in (q, k, v)))
    assert_close(out, np.broadcast_to(number[:, :, None, None].astype(float), out.shape))


@pytest.mark.parametrize("queries", [1, 4])
def test_zero_strides(backend, rng, queries):
    """Case 70: keys and values broadcast over batch, heads, length or columns."""
    for keys in ALL_SIZES:
        q = draw(rng, (2, 3, queries, 8))
        one = draw(rng, (1, 1, keys, 8))
        k = np.broadcast_to(one, (2, 3, keys, 8))
        v = np.broadcast_to(one[..., ::-1], (2, 3, keys, 8))
        assert_same(backend, (q, k, v), (q, k.copy(), v.copy()), f"{keys}")
        if keys in (1, 33, KEY_TILE + 1):
            row = np.broadcast_to(draw(rng, (2, 3, 1, 8)), (2, 3, keys, 8))
            column = np.broadcast_to(draw(rng, (2, 3, keys, 1)), (2, 3, keys, 8))
            for k, v in itertools.product((row, column), repeat=2):
                assert_same(backend, (q, k, v), (q, k.copy(), v.copy()), f"{keys}")
    q = np.broadcast_to(draw(rng, (1, 1, 1, 8)), (2, 3, 9, 8))
    assert_same(backend, (q, k, v), (q.copy(), k.copy(), v.copy()))


@pytest.mark.parametrize("shape", SHAPES)
def test_negative_strides(backend, rng, dtype, shape):
    """Case 72: reversing keys with values changes nothing, reversing queries reverses rows."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(2,), queries=queries, keys=keys, dim=8)
    plain = sdpa(q, k, v).astype(np.float64)
    assert_close(sdpa(q, k[:, :, ::-1], v[:, :, ::-1]), plain)
    assert_close(sdpa(q[..., ::-1], k[..., ::-1], v), plain)
    assert_close(sdpa(q, k, v[..., ::-1])[..., ::-1], plain)
    assert_close(sdpa(q[::-1], k[::-1], v[::-1])[::-1], plain)
    turned = q[:, :, ::-1]
    assert_same(backend, (turned, k, v), (turned.copy(), k, v))
    assert_close(sdpa(turned, k, v)[:, :, ::-1], plain)
    mask = rng.random((queries, keys)) < 0.6
    masked = sdpa(q, k, v, mask).astype(np.float64)
    assert_close(sdpa(q, k[:, :, ::-1], v[:, :, ::-1], mask[:, ::-1]), masked)
    assert_close(sdpa(turned, k, v, mask[::-1])[:, :, ::-1], masked)


@pytest.mark.parametrize("shape", SHAPES)
def test_bshd(backend, rng, dtype, shape):
    """layout="bshd" only moves the head axis of query, key, value and out."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(2,), heads=4, kv_heads=2, queries=queries, keys=keys, dim=8)
    mask = draw(rng, (2, 4, 1, keys))
    options = {"attn_mask": mask, "is_causal": True, "return_lse": True, "return_weights": True}
    wanted = sdpa(q, k, v, **options)
    turned = [x.swapaxes(1, 2) for x in (q, k, v)]
    for given in (turned, [x.copy() for x in turned]):
        got = sdpa(*given, layout="bshd", **options)
        assert got[0].shape == (2, queries, 4, 6)
        assert_close(got[0].swapaxes(1, 2), wanted[0].astype(np.float64))
        assert got[1].shape == (2, 4, queries) and got[2].shape == (2, 4, queries, keys)
        assert_close(got[1], wanted[1].astype(np.float64))
        assert_close(got[2], wanted[2].astype(np.float64))
        check(*given, layout="bshd", is_causal=True, weights=True)
    check(*(x[0] for x in turned), layout="bshd", is_causal=True, weights=True)
    check(q[0, 0], k[0, 0], v[0, 0], layout="bshd", is_causal=True, weights=True)


def test_ranks(backend, rng, dtype):
    """Ranks 2 to 6 give results of the same rank."""
    for lead in ((), (2,), (2, 5), (2, 1, 3)):
        q, k, v = qkv(rng, dtype, lead=lead, heads=3, queries=4, keys=7)
        out, lse, weights = sdpa(q, k, v, return_lse=True, return_weights=True)
        assert out.shape == (*lead, 3, 4, 6)
        assert lse.shape == (*lead, 3, 4) and weights.shape == (*lead, 3, 4, 7)
        check(q, k, v, weights=True)
    out, lse, weights = sdpa(q[0, 0, 0, 0], k[0, 0, 0, 0], v[0, 0, 0, 0],
                             return_lse=True, return_weights=True)  # fmt: skip
    assert out.shape == (4, 6) and lse.shape == (4,) and weights.shape == (4, 7)
    check(q[0, 0, 0, 0], k[0, 0, 0, 0], v[0, 0, 0, 0], weights=True)


def test_leading_axes_broadcast(backend, rng, dtype):
    """Leading axes of size 1 stretch, in any of the three operands."""
    sizes = [((2, 5), (2, 1), (1, 5)), ((1, 1), (2, 1), (2, 5)), ((1, 5), (2, 5), (1, 1))]
    for q_lead, k_lead, v_lead in [*sizes, ((1,), (4,), (4,)), ((4,), (1,), (1,))]:
        q = draw(rng, (*q_lead, 4, 3, 8), dtype)
        k, v = draw(rng, (*k_lead, 2, 7, 8), dtype), draw(rng, (*v_lead, 2, 7, 6), dtype)
        check(q, k, v, is_causal=True, weights=True, context=f"{q_lead} {k_lead} {v_lead}")
        check(*(x.swapaxes(-2, -3) for x in (q, k, v)), layout="bshd", is_causal=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs lazily mapped memory")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_offsets_beyond_32_bits(backend, rng, axis):
    """Case 93: entries more than 2**31 elements apart, in memory that is mapped but untouched."""
    shape = (2, 2, 2, 4)
    step = (1 << 31) + 64
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    strides = [128, 32, 8, 1]
    strides[axis] = step
    last = sum(s * (n - 1) for s, n in zip(strides, shape)) + 1

    def far(values):
        base = np.frombuffer(mmap.mmap(-1, 4 * last, flags=flags), np.float32)
        view = np.lib.stride_tricks.as_strided(base, shape, [4 * s for s in strides])
        view[:] = values
        return view

    q, k, v = (draw(rng, shape) for _ in range(3))
    out = far(np.full(shape, np.nan))
    sdpa(far(q), far(k), far(v), bias=far(np.zeros(shape))[..., :2], out=out)
    assert_bits_equal(out, sdpa(q, k, v, bias=np.zeros((2, 2))))
