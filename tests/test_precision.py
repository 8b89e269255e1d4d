# SPDX-License-Identifier: MIT
# Rounding: half precision inputs, long sums, the exponential, subnormal numbers.
# Used by the suite, on every backend.
# Speed on subnormal numbers is a matter for bench/, not for these tests.
"""Scores and sums are kept in float32 at least (float64 for float64), exp is accurate."""

import numpy as np
import pytest
from cases import KEY_TILE, QUERY_BLOCK
from check import assert_close, check, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


@pytest.fixture(params=["float16", "bfloat16"])
def half(request):
    if request.param == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(request.param)


@pytest.mark.parametrize("queries", [1, QUERY_BLOCK + 1])
def test_half_dot_products_beyond_the_half_range(backend, rng, half, queries):
    """Case 20: scores of 7e5 from half inputs; all keys tie."""
    q, k = np.full((1, 2, queries, 64), 300, half), np.full((1, 2, 17, 64), 300, half)
    v = draw(rng, (1, 2, 17, 5), half)
    out, lse = sdpa(q, k, v, return_lse=True)
    mean = v.astype(np.float64).mean(axis=-2, keepdims=True)
    assert_close(out, np.broadcast_to(mean, out.shape))
    assert np.isfinite(lse).all() and (lse > 65504).all()


@pytest.mark.parametrize("queries", [1, QUERY_BLOCK + 1])
def test_half_accumulator_at_long_context(backend, half, queries):
    """Case 22: the sum of weighted values before division would leave the half range."""
    q, k = np.zeros((1, 1, queries, 8), half), np.zeros((1, 1, 4096, 8), half)
    v = np.full((1, 1, 4096, 8), 30000, half)
    assert_close(sdpa(q, k, v), np.full((1, 1, queries, 8), float(v[0, 0, 0, 0])))


@pytest.mark.parametrize("queries", [1, 8, QUERY_BLOCK + 1])
@pytest.mark.parametrize("keys", [8, 2 * KEY_TILE + 1])
def test_values_near_the_limit(backend, real, queries, keys):
    """Case 22: many values of 3e38 average to 3e38 although their sum is infinite."""
    q, k = np.zeros((2, queries, 3), real), np.zeros((2, keys, 3), real)
    big = 0.9 * float(np.finfo(real).max)
    v = np.stack([np.full(keys, big), np.full(keys, -big), np.full(keys, 1.5)], axis=-1)
    out = sdpa(q, k, np.broadcast_to(v.astype(real), (2, keys, 3)))
    rtol = 1e-5 if real == np.float32 else 1e-13
    np.testing.assert_allclose(out, np.broadcast_to([big, -big, 1.5], out.shape), rtol=rtol)


@pytest.mark.parametrize("keys", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize("size", [0.0, 1.0], ids=["equal", "normal"])
def test_half_row_sum_does_not_stick(backend, rng, half, keys, size):
    """Case 23: a sum kept in half precision stops growing; ones must average to one."""
    q = np.ones((1, 1, 2, 1), half)
    k = draw(rng, (1, 1, keys, 1), half, size)
    v = np.ones((1, 1, keys, 3), half)
    assert_close(sdpa(q, k, v, scale=1.0), np.ones((1, 1, 2, 3)), dtype=np.float32)


@pytest.mark.parametrize("size", [0.0, 1.0], ids=["equal", "normal"])
def test_float32_sum_over_a_million_keys(backend, rng, size):
    """Case 25: a plain running float32 sum drifts by 1e-4 and more."""
    k = draw(rng, (1, 1, 1 << 20, 1), np.float32, size)
    v = np.full((1, 1, 1 << 20, 1), 1.23456, np.float32)
    out, lse = sdpa(np.ones((1, 1, 1, 1), np.float32), k, v, scale=1.0, return_lse=True)
    assert abs(out.item() / float(np.float32(1.23456)) - 1) <= 1e-5
    wanted = np.log(np.exp(k.astype(np.float64)).sum())
    assert abs(lse.item() / wanted - 1) <= 2e-5


@pytest.mark.parametrize("lanes", [1, 9, QUERY_BLOCK + 1])
def test_exponential_between_two_keys(backend, real, lanes):
    """Case 29: out is 1 / (1 + e^gap); relative down to twice the smallest normal e^-gap."""
    gap = np.linspace(0, 100 if real == np.float32 else 750, 997).astype(real)
    q = np.broadcast_to(-gap[:, None, None, None], (997, 1, lanes, 1))
    k = np.broadcast_to(np.array([[0.0], [1.0]], real), (997, 1, 2, 1))
    v = np.broadcast_to(np.array([[0.0], [1.0]], real), (997, 1, 2, 1))
    out = sdpa(q, k, v, scale=1.0)[..., 0].reshape(997, lanes)
    wide, rtol, least = np.float64, 5e-6, 1e-37
    if real == np.float64:
        wide, rtol, least = np.longdouble, 3e-13, 1e-307
    exact = 1 / (1 + np.exp(gap.astype(wide)))[:, None]
    normal = np.exp(-gap.astype(wide))[:, None] >= 2 * np.finfo(real).tiny
    error = abs(out - exact)
    assert (error <= np.where(normal, rtol * exact, least)).all()


@pytest.mark.parametrize("queries", [1, 7, QUERY_BLOCK])
def test_exponential_of_one_row(backend, real, queries):
    """Case 29: 64 keys with gaps 0..63, read off one by one through one-hot values."""
    gaps = np.arange(64, dtype=real)
    q = np.full((1, queries, 1), -1, real)
    out, weights = sdpa(
        q, gaps.reshape(1, 64, 1), np.eye(64, dtype=real)[None], scale=1.0,
        return_weights=True,
    )  # fmt: skip
    exact = np.exp(-gaps.astype(np.float64))
    exact /= exact.sum()
    for got in (out, weights):
        assert (abs(got / exact - 1) <= (5e-6 if real == np.float32 else 2e-14)).all()


@pytest.mark.parametrize("queries", [1, 5, QUERY_BLOCK + 1])
def test_far_keys_underflow_to_zero(backend, rng, real, queries):
    """Case 30: padding at -1e30 has weight 0, not the smallest normal number, times 1e38."""
    q, k, v = qkv(rng, real, lead=(), heads=2, queries=queries, keys=4096, dim=8, dv=3)
    rtol = 1e-6 if real == np.float32 else 1e-13
    v[:, 96:] = 0.3 * np.finfo(real).max
    bias = np.zeros(4096, np.float32)
    bias[96:] = -1e30
    alone = sdpa(q, k[:, :96], v[:, :96])
    np.testing.assert_allclose(sdpa(q, k, v, bias=bias), alone, rtol=rtol, atol=rtol)
    bias[96:] = -200 if real == np.float32 else -1500
    np.testing.assert_allclose(sdpa(q, k, v, bias=bias), alone, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("which", ["query", "key", "value"])
@pytest.mark.parametrize("queries", [1, QUERY_BLOCK + 1])
def test_subnormal_inputs(backend, rng, real, which, queries):
    """Case 32: subnormal inputs are valid numbers and the thread keeps its own mode."""
    q, k, v = qkv(rng, real, lead=(), heads=2, queries=queries, keys=33)
    {"query": q, "key": k, "value": v}[which][:] = 1e-40 if real == np.float32 else 1e-310
    got, want = sdpa(q, k, v), expected(q, k, v).out
    if which == "value":
        assert (abs(got - want) <= np.finfo(real).tiny).all()
    else:
        assert_close(got, want)
    assert np.float64(5e-324) * 1.0 != 0 and np.float32(1e-40) * np.float32(1) != 0


def test_float64_is_computed_in_float64(backend, rng):
    """Case 114: differences of 1e-10 between weights survive."""
    q = np.ones((1, 1, 1, 1))
    k = np.array([0.0, 1e-10]).reshape(1, 1, 2, 1)
    out, lse, weights = sdpa(
        q, k, np.array([-1.0, 1.0]).reshape(1, 1, 2, 1), return_lse=True, return_weights=True
    )
    assert out.dtype == lse.dtype == weights.dtype == np.float64
    assert out.item() == pytest.approx(5e-11, rel=1e-5)
    for shape in ({}, {"queries": QUERY_BLOCK + 1, "keys": KEY_TILE + 1}, {"queries": 1}):
        q, k, v = qkv(rng, np.float64, **shape)
        check(q, k, v, weights=True)
        check(q, k, v, is_causal=True, softcap=3.0, bias=rng.standard_normal(k.shape[-2]))


def test_errors_do_not_grow_with_the_head_size(backend, rng, real):
    """Errors stay within tolerance for long dot products and large scores."""
    for dim in (1, 64, 257, 1024):
        for size in (0.1, 1.0, 5.0):
            q, k, v = qkv(rng, real, lead=(), heads=2, queries=7, keys=KEY_TILE + 1, dim=dim)
            check(q * real.type(size), k * real.type(size), v, context=f"{dim} {size}")
