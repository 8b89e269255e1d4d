# SPDX-License-Identifier: MIT
# The scale, the soft cap, and the order in which the score is built.
# Used by the suite, on every backend.
# Wrong values of both arguments are in test_errors.py.
"""s = softcap * tanh(scale * q.k / softcap), then biases, then masks."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
SHAPES = [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5)]


def test_masks_come_after_the_cap(backend, dtype):
    """Case 49: a capped minus infinity would keep 12 % of the weight."""
    q, k = np.full((1, 1, 1, 1), 10, dtype), np.ones((1, 1, 2, 1), dtype)
    v = np.array([0, 1], dtype).reshape(1, 1, 2, 1)
    for options in (
        {"attn_mask": np.array([True, False])},
        {"attn_mask": np.array([0, -np.inf])},
        {"bias": np.array([0, -np.inf], np.float32)},
        {"is_causal": True},
        {"window": (0, 0)},
        {"kv_lengths": 1},
    ):
        assert sdpa(q, k, v, softcap=1.0, scale=1.0, **options).item() == 0.0, options


def test_biases_come_after_the_cap(backend, rng, dtype):
    """Case 49: a bias larger than the cap keeps its full size."""
    q, k, v = qkv(rng, dtype, queries=4, keys=9)
    bias = draw(rng, (4, 9), np.float32, 20)
    for options in (
        {"bias": bias},
        {"attn_mask": bias},
        {"alibi_slopes": np.array([3.0, 0.5, 9.0], np.float32)},
    ):
        check(q, k, v, softcap=1.5, weights=True, context=str(list(options)), **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cap", [1e-3, 0.5, 1.0, 30.0, 50.0, 1e4, 1e30])
def test_caps(backend, rng, dtype, shape, cap):
    """Every size of cap, with scores well below and well beyond it."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(), heads=2, queries=queries, keys=keys, dim=8)
    for scale in (None, 20.0):
        check(q, k, v, softcap=cap, scale=scale, context=f"scale {scale}")


def test_small_scores_keep_their_relative_accuracy_under_a_cap(backend):
    """A tanh by a difference of exponentials has no relative accuracy near zero."""
    x = np.array([1e-6, 1e-5, 1e-4, 1e-3], np.float32).reshape(4, 1, 1, 1)
    k, v = np.array([0, 1], np.float32).reshape(1, 1, 2, 1), np.ones((1, 1, 2, 1), np.float32)
    for factor in (1.0, -1.0):
        lse = sdpa(x * np.float32(factor), k[:, :, 1:], v[:, :, 1:], scale=1.0, softcap=1.0,
                   return_lse=True)[1]  # fmt: skip
        wanted = np.tanh(factor * x.astype(np.float64)).ravel()
        assert (abs(lse.ravel() / wanted - 1) <= 2e-6).all()


@pytest.mark.parametrize("off", [0, 0.0, None, np.float32(0)])
def test_cap_off(backend, rng, off):
    q, k, v = qkv(rng)
    assert_bits_equal(sdpa(q, k, v, softcap=off), sdpa(q, k, v))


@pytest.mark.parametrize("cap", [3, 3.0, np.float32(3), np.float64(3), np.array(3.0), np.int8(3)])
def test_cap_types(backend, rng, cap):
    q, k, v = qkv(rng)
    assert_bits_equal(sdpa(q, k, v, softcap=cap), sdpa(q, k, v, softcap=3.0))


def test_default_scale(backend, rng, dtype):
    """Case 51: 1/sqrt of the query's head size, not of the value's."""
    q, k, v = qkv(rng, dtype, dim=37, dv=5)
    check(q, k, v, weights=True)
    assert_bits_equal(sdpa(q, k, v), sdpa(q, k, v, scale=1 / np.sqrt(37)))
    assert_bits_equal(sdpa(q, k, v, scale=None), sdpa(q, k, v, scale=37**-0.5))


@pytest.mark.parametrize(
    "scale", [1.0, 0.5, np.float32(0.5), np.float16(0.25), 1, np.array(0.5), np.int64(2)]
)
def test_scale_types(backend, rng, dtype, scale):
    """Case 51: Python, NumPy and 0-d scalars."""
    q, k, v = qkv(rng, dtype, dim=37, dv=5)
    check(q, k, v, scale=scale)
    assert_bits_equal(sdpa(q, k, v, scale=scale), sdpa(q, k, v, scale=float(scale)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0, -1.0, -0.3, 1e-30, 40.0])
def test_any_finite_scale(backend, rng, dtype, shape, scale):
    """Zero gives the mean, a negative scale turns the order round."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, lead=(), heads=2, queries=queries, keys=keys, dim=8)
    check(q, k, v, scale=scale)
    check(q, k, v, scale=scale, softcap=2.0, is_causal=True, bias=draw(rng, (queries, keys)))
    if scale == 0:
        mean = v.astype(np.float64).mean(axis=-2, keepdims=True)
        got = sdpa(q, k, v, scale=scale)
        assert_close(got, np.broadcast_to(mean, got.shape))


@pytest.mark.parametrize("scale", [1e36, -1e36, 1e300, 1e-300])
def test_scales_that_float32_hardly_holds(backend, rng, scale):
    """The product counts, not the scale: tiny keys times a huge scale are ordinary scores."""
    q, k, v = qkv(rng, lead=(), heads=2, dim=3)
    if abs(scale) == 1e36:
        check(q, k * np.float32(1e-36), v, scale=scale)
    elif scale == 1e-300:
        check(q, k, v, scale=scale)
    else:
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        check(q, k * 1e-300, v, scale=scale)
