# SPDX-License-Identifier: MIT
# Reads and writes stay inside the arrays: every operand touches a forbidden page.
# Used by the suite, on every backend; Linux only.
# Values are compared as well, but the point is that nothing crashes.
"""Cases 58, 63, 79: an access past either end of an array is a segmentation fault here."""

import itertools
import sys

import numpy as np
import pytest
from cases import (
    ALL_SIZES,
    CHUNK_EDGES,
    KEY_CHUNK,
    KEY_EDGES,
    KEY_TILE,
    QUERY_BLOCK,
    QUERY_EDGES,
    VECTOR_EDGES,
)  # fmt: skip
from check import assert_close, draw, expected, qkv

import fastattn

if not sys.platform.startswith("linux"):
    pytest.skip("guard pages use Linux calls", allow_module_level=True)

from guard import after_fence, before_fence

sdpa = fastattn.scaled_dot_product_attention


def run(fence, q, k, v, attn_mask=None, *, bias=None, context="", **options):
    """The call with all operands and out next to a fence, compared with the oracle."""
    want = expected(q, k, v, attn_mask, bias=bias, **options)
    out = fence(np.full(want.out.shape, np.nan, q.dtype))
    masks = {"attn_mask": attn_mask, "bias": bias}
    fenced = {n: fence(np.asarray(x)) for n, x in masks.items() if x is not None}
    for name in ("sinks", "alibi_slopes", "kv_lengths", "q_offset"):
        if isinstance(options.get(name), np.ndarray):
            options[name] = fence(options[name])
    got = sdpa(fence(q), fence(k), fence(v), out=out, **fenced, **options)
    assert got is out
    assert_close(out, want.out, slack=want.out_slack, size=want.size, context=context)


FENCES = pytest.mark.parametrize("fence", [before_fence, after_fence], ids=lambda f: f.__name__)


@FENCES
@pytest.mark.parametrize("queries", QUERY_EDGES)
def test_edges_of_blocks_and_tiles(backend, rng, real, fence, queries):
    for keys in KEY_EDGES:
        q, k, v = qkv(rng, real, lead=(), heads=2, queries=queries, keys=keys, dim=5, dv=3)
        run(fence, q, k, v, is_causal=True, q_offset=keys - queries, context=f"{keys}")


@FENCES
@pytest.mark.parametrize("keys", CHUNK_EDGES)
def test_edges_of_chunks(backend, rng, real, fence, keys):
    for queries, heads in ((1, 1), (1, 4), (3, 2), (2, 7)):
        q, k, v = qkv(
            rng, real, lead=(2,), heads=heads, kv_heads=1, queries=queries, keys=keys, dim=7, dv=9
        )
        run(fence, q, k, v, bias=draw(rng, keys), context=f"{queries} {heads}")


@FENCES
@pytest.mark.parametrize("shape", [(2, 9), (QUERY_BLOCK + 1, KEY_TILE + 1), (1, KEY_CHUNK + 1)])
def test_head_sizes(backend, rng, real, fence, shape):
    queries, keys = shape
    for dim, dv in zip(VECTOR_EDGES, VECTOR_EDGES[::-1], strict=True):
        q, k, v = qkv(rng, real, lead=(), heads=2, queries=queries, keys=keys, dim=dim, dv=dv)
        run(fence, q, k, v, context=f"{dim} {dv}")


@FENCES
@pytest.mark.parametrize("shape", [(3, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 2)])
@pytest.mark.parametrize("kind", ["bool", "float32", "float64", "float16"])
def test_masks_of_every_shape(backend, rng, real, fence, shape, kind):
    """Cases 58, 59: broadcast masks are read inside their own few elements."""
    queries, keys = shape
    q, k, v = qkv(rng, real, lead=(2,), heads=3, queries=queries, keys=keys)
    for mask_shape in itertools.product({1, 2}, {1, 3}, {1, queries}, {1, keys}):
        mask = draw(rng, mask_shape)
        mask = mask < 0.8 if kind == "bool" else mask.astype(kind)
        run(fence, q, k, v, mask, context=str(mask_shape))
        if kind != "bool":
            run(fence, q, k, v, bias=mask[0], context=str(mask_shape))


@FENCES
def test_hidden_keys_may_lie_on_forbidden_pages(backend, rng, real, fence):
    """Keys past the lengths and small arguments: everything at a fence at once."""
    for queries, keys in ((3, 9), (QUERY_BLOCK + 1, KEY_TILE + 1), (1, KEY_CHUNK + 1)):
        q, k, v = qkv(rng, real, lead=(2,), heads=4, kv_heads=2, queries=queries, keys=keys)
        run(
            fence, q, k, v, rng.random((queries, keys)) < 0.7, bias=draw(rng, (4, 1, keys)),
            kv_lengths=np.array([keys, keys // 2]), q_offset=np.array([0, keys - queries]),
            alibi_slopes=draw(rng, (2, 4), real), sinks=draw(rng, 4, real),
            window=(keys // 3, 2), softcap=3.0,
        )  # fmt: skip


@FENCES
def test_strided_operands(backend, rng, real, fence):
    """Views whose last element is the last one before the fence."""
    for queries, keys in ((3, 9), (QUERY_BLOCK + 1, KEY_TILE + 1), (1, KEY_CHUNK + 1)):
        q, k, v = (
            np.ascontiguousarray(x.swapaxes(1, 2))
            for x in qkv(
                rng, real, lead=(2,), heads=4, kv_heads=2, queries=queries, keys=keys, dv=5
            )
        )
        want = expected(q, k, v, layout="bshd")
        out = fence(np.full(want.out.shape, np.nan, real))
        sdpa(fence(q), fence(k), fence(v), layout="bshd", out=out)
        assert_close(out, want.out, slack=want.out_slack)
        backwards = [fence(x)[::-1, ::-1, ::-1] for x in (q, k, v)]
        want = expected(*backwards, layout="bshd")
        assert_close(sdpa(*backwards, layout="bshd"), want.out, slack=want.out_slack)


def sizes():
    masks = ("none", "bool", "causal")
    return list(itertools.product(ALL_SIZES, ALL_SIZES, (1, 3, 8, 16, 17), masks))


@FENCES
@pytest.mark.slow
def test_tails(backend, rng, real, sample, fence):
    """Case 79: the full product of lengths, head sizes and masks, sampled by default."""
    for queries, keys, dim, form in sample(sizes(), 50):
        q, k, v = qkv(rng, real, lead=(), heads=1, queries=queries, keys=keys, dim=dim, dv=dim)
        mask = rng.random((queries, keys)) < 0.7 if form == "bool" else None
        run(fence, q, k, v, mask, is_causal=form == "causal", context=f"{queries} {keys} {dim}")


@FENCES
def test_half_and_double(backend, rng, dtype, fence):
    """The other dtypes, whoever computes them."""
    for queries, keys in ((3, 9), (QUERY_BLOCK + 1, KEY_TILE + 1)):
        q, k, v = qkv(rng, dtype, lead=(), queries=queries, keys=keys)
        run(fence, q, k, v, is_causal=True)
