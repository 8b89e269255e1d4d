# SPDX-License-Identifier: MIT
# What a call returns: order, shapes, dtypes, and that asking for more changes nothing.
# Used by the suite, on every backend.
# The values under each option are checked in that option's file.
"""out, or a tuple (out[, lse][, weights])."""

import itertools

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import accumulator, assert_close, check, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
SHAPES = [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5), (3, KEY_CHUNK + 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_order_of_results(backend, rng, dtype, shape):
    """Each combination of flags gives the same numbers in the same places."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys)
    out, lse, weights = sdpa(q, k, v, return_lse=True, return_weights=True)
    alone = sdpa(q, k, v)
    with_lse = sdpa(q, k, v, return_lse=True)
    with_weights = sdpa(q, k, v, return_weights=True)
    assert type(alone) is np.ndarray
    assert type(with_lse) is tuple and len(with_lse) == 2
    assert type(with_weights) is tuple and len(with_weights) == 2
    for other in (alone, with_lse[0], with_weights[0]):
        assert_close(other, out.astype(np.float64))
    assert_close(with_lse[1], lse.astype(np.float64))
    assert_close(with_weights[1], weights.astype(np.float64))
    assert out.dtype == weights.dtype == dtype and lse.dtype == accumulator(dtype)
    assert out.shape == (2, 4, queries, 6)
    assert lse.shape == (2, 4, queries) and weights.shape == (2, 4, queries, keys)


def test_results_are_fresh_plain_arrays(backend, rng, dtype):
    """Results own their memory and two calls do not share it."""
    q, k, v = qkv(rng, dtype)
    first = sdpa(q, k, v, return_lse=True, return_weights=True)
    second = sdpa(q, k, v, return_lse=True, return_weights=True)
    for one, other in zip(first, second):
        assert type(one) is np.ndarray and one.flags.writeable and one.flags.c_contiguous
        assert not np.shares_memory(one, other)
        for given in (q, k, v):
            assert not np.shares_memory(one, given)


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_sum_to_one_and_give_the_output(backend, rng, dtype, shape):
    """Rows of weights are a distribution; weights @ value is out."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    mask = rng.random((queries, keys)) < 0.5
    out, weights = sdpa(q, k, v, mask, return_weights=True)
    wide = weights.astype(np.float64)
    assert (wide >= 0).all() and not wide[..., ~mask].any()
    alive = np.broadcast_to(mask.any(axis=-1), wide.shape[:-1])
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype.name]
    np.testing.assert_allclose(wide.sum(axis=-1), alive, atol=tolerance)
    product = wide @ v.astype(np.float64)
    assert_close(out, product, slack=4 * tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_normalised_scores(backend, rng, dtype, shape):
    """exp(score - lse) is the weight, and both match the oracle."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    check(q, k, v, weights=True)
    check(q, k, v, draw(rng, (3, queries, keys)), sinks=draw(rng, 3), softcap=3.0, weights=True)


@pytest.mark.parametrize(
    "flags", list(itertools.product((True, np.True_, False), (False, np.False_, True)))
)
def test_flags_are_bools_of_python_or_numpy(backend, rng, flags):
    q, k, v = qkv(rng)
    got = sdpa(q, k, v, return_lse=flags[0], return_weights=flags[1])
    count = 1 + bool(flags[0]) + bool(flags[1])
    assert (len(got) if type(got) is tuple else 1) == count


def test_lse_of_large_scores(backend, rng):
    """lse is finite where the sum of exponentials is not."""
    q, k, v = qkv(rng, lead=(), heads=2)
    for shift in (-3e4, -500.0, 500.0, 3e4):
        check(q, k, v, bias=np.full((5, 7), shift, np.float32), weights=True)
