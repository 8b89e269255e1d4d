# SPDX-License-Identifier: MIT
# Lengths and head sizes: zero, one, around every tile edge, and unlike each other.
# Used by the suite, on every backend.
# Guard pages around the same sizes are in test_guard_pages.py.
"""No size is special: tails, empty axes and odd head sizes give the reference result."""

import itertools

import numpy as np
import pytest
from cases import (
    ALL_SIZES,
    CHUNK_EDGES,
    HEAD_SIZES,
    KEY_CHUNK,
    KEY_EDGES,
    KEY_SPLIT,
    KEY_TILE,
    QUERY_BLOCK,
    QUERY_EDGES,
    SPLIT_EDGES,
    VECTOR_EDGES,
)
from check import assert_close, check, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention

ZERO_SIZES = """
import itertools
import fastattn
import numpy as np

for empty in itertools.product((2, 0), repeat=6):
    b, h, sq, sk, d, dv = empty
    for causal, n, kind in itertools.product((False, True), (1, 8), ("f4", "f8", "f2")):
        q, k = np.ones((b, h, sq, d), kind), np.ones((b, h, sk, d), kind)
        v = np.ones((b, h, sk, dv), kind)
        options = dict(is_causal=causal, return_lse=True, return_weights=True)
        with fastattn.threads(n):
            if d == 0:
                try:
                    fastattn.scaled_dot_product_attention(q, k, v, **options)
                except ValueError as error:
                    assert "scale" in str(error), error
                else:
                    raise AssertionError("D = 0 without a scale was accepted")
                options["scale"] = 0.5
            out, lse, weights = fastattn.scaled_dot_product_attention(q, k, v, **options)
        assert out.shape == (b, h, sq, dv), (empty, out.shape)
        assert lse.shape == (b, h, sq) and weights.shape == (b, h, sq, sk), empty
        assert out.dtype == np.dtype(kind)
        assert (out == (1 if sk else 0)).all(), empty
        assert sk or np.isneginf(lse).all(), empty
print("done")
"""


def test_zero_sizes(backend, run_python):
    """Cases 74, 78: every set of axes empty; in a child, since the fault would be a signal."""
    done = run_python(ZERO_SIZES, FASTATTN_BACKEND=backend)
    assert done.stdout.strip() == "done" and done.returncode == 0, done
    assert done.stderr == ""


@pytest.mark.parametrize("axis", range(6))
def test_zero_sizes_with_every_option(backend, rng, dtype, axis):
    """Case 78: options whose own arrays become empty as well."""
    sizes = [2, 4, 3, 5, 8, 6]
    sizes[axis] = 0
    b, h, sq, sk, d, dv = sizes
    q, k = draw(rng, (b, h, sq, d), dtype), draw(rng, (b, h if h == 0 else 2, sk, d), dtype)
    v = draw(rng, (b, h if h == 0 else 2, sk, dv), dtype)
    check(
        q, k, v, draw(rng, (b, h, sq, sk)), bias=draw(rng, (h, 1, sk)), is_causal=True, scale=0.3,
        q_offset=np.zeros(b, np.int64), kv_lengths=np.full(b, sk), window=(3, 3), softcap=2.0,
        alibi_slopes=draw(rng, h), sinks=draw(rng, h), weights=True,
    )  # fmt: skip
    check(q, k, v, np.ones((sq, sk), bool), q_offset="lower_right", scale=0.3, weights=True)


def test_head_size_zero_gives_the_mean(backend, rng, dtype):
    """Case 74: with an explicit scale, D = 0 means that all scores are 0."""
    q, k, v = qkv(rng, dtype, dim=0)
    with pytest.raises(ValueError, match="scale"):
        sdpa(q, k, v)
    out, lse = sdpa(q, k, v, scale=1.0, return_lse=True)
    mean = v.astype(np.float64).mean(axis=-2, keepdims=True)
    assert_close(out, np.broadcast_to(mean, out.shape))
    np.testing.assert_allclose(lse, np.log(7), rtol=1e-6)


def tails():
    masks = ("none", "bool", "causal", "float")
    return list(itertools.product(ALL_SIZES, ALL_SIZES, (1, 3, 8, 16, 17), masks))


@pytest.mark.slow
def test_tails(backend, rng, sample):
    """Case 79: lengths around every edge, with small head sizes, each kind of mask."""
    for queries, keys, dim, form in sample(tails(), 100):
        q, k, v = qkv(rng, lead=(), heads=2, queries=queries, keys=keys, dim=dim, dv=dim + 1)
        mask = {
            "none": {},
            "bool": {"attn_mask": rng.random((queries, keys)) < 0.7},
            "float": {"bias": draw(rng, (queries, keys))},
            "causal": {"is_causal": True, "q_offset": keys - queries},
        }[form]
        check(q, k, v, context=f"{queries} {keys} {dim} {form}", **mask)


@pytest.mark.parametrize("queries", QUERY_EDGES)
def test_tile_edges(backend, rng, queries):
    """Case 79: every edge of a row block against every edge of a key tile."""
    for keys in KEY_EDGES:
        q, k, v = qkv(rng, lead=(), heads=2, queries=queries, keys=keys, dim=5, dv=3)
        check(q, k, v, context=f"{keys}", weights=keys < 40)
        mask = rng.random((1, keys)) < 0.5
        check(q, k, v, mask, is_causal=True, q_offset="lower_right", context=f"{keys}")


@pytest.mark.parametrize("keys", CHUNK_EDGES)
@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5, 7, 8, 9, 16])
def test_chunk_edges_of_decode(backend, rng, queries, keys):
    """Case 79: few queries against keys around the edges of the chunks."""
    q, k, v = qkv(rng, lead=(), heads=2, kv_heads=1, queries=queries, keys=keys, dim=9, dv=5)
    check(q, k, v)
    check(q, k, v, rng.random(keys) < 0.5, bias=draw(rng, (2, 1, keys)), softcap=3.0)


@pytest.mark.parametrize("keys", SPLIT_EDGES)
@pytest.mark.parametrize("queries", [5, 16])
def test_split_edges_of_long_keys(backend, rng, queries, keys):
    """Case 79: more keys than one piece of work takes, with rows that see some pieces only."""
    q, k, v = qkv(rng, lead=(), heads=4, kv_heads=2, queries=queries, keys=keys, dim=8, dv=5)
    check(q, k, v, is_causal=True, q_offset="lower_right")
    check(q, k, v, window=(KEY_SPLIT // 2, 0), q_offset=KEY_SPLIT - queries // 2)
    v[:, 3:] = np.nan
    check(q, k, v, is_causal=True, q_offset=2 - queries)


@pytest.mark.parametrize("shape", [(3, 10), (QUERY_BLOCK + 1, KEY_TILE + 1), (1, KEY_CHUNK + 1)])
def test_head_sizes(backend, rng, dtype, shape):
    """Case 82: each size of the list; each output column separately told apart."""
    queries, keys = shape
    sizes = HEAD_SIZES if dtype == np.float32 or queries == 3 else HEAD_SIZES[::7]
    for dim in sizes:
        q, k, v = qkv(rng, dtype, lead=(), heads=1, queries=queries, keys=keys, dim=dim, dv=dim)
        check(q, k, v, context=f"{dim}")
        columns = np.broadcast_to(np.arange(dim) % 64 + 1, (1, keys, dim)).astype(dtype)
        out = sdpa(np.zeros_like(q), k, columns)
        assert_close(
            out, np.broadcast_to(columns[:, :1].astype(float), out.shape), context=f"{dim}"
        )


@pytest.mark.parametrize("sizes", [(256, 512), (8, 1), (1, 8), (5, 7), (64, 0), (3, 130), (130, 3)])
@pytest.mark.parametrize("shape", [(3, 10), (QUERY_BLOCK + 1, KEY_TILE + 1), (1, KEY_CHUNK + 1)])
def test_value_size_of_its_own(backend, rng, dtype, shape, sizes):
    """Case 84: the value head size is free."""
    (queries, keys), (dim, dv) = shape, sizes
    q, k, v = qkv(rng, dtype, lead=(), heads=2, queries=queries, keys=keys, dim=dim, dv=dv)
    out = check(q, k, v, weights=True)
    assert out.shape == (2, queries, dv)


@pytest.mark.slow
def test_value_and_key_sizes_together(backend, rng, sample):
    """Case 84: pairs of head sizes around the vector width, in every path."""
    for dim, dv in sample(itertools.product(VECTOR_EDGES, VECTOR_EDGES), 30):
        for queries, keys in ((2, 9), (9, KEY_TILE + 1), (1, KEY_CHUNK + 1)):
            q, k, v = qkv(rng, lead=(), heads=1, queries=queries, keys=keys, dim=dim, dv=dv)
            check(q, k, v, is_causal=True, q_offset=keys - queries, context=f"{dim} {dv}")
