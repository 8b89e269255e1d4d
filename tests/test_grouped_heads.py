# SPDX-License-Identifier: MIT
# Grouped-query heads: which key head a query head reads.
# Used by the suite, on every backend.
# Batch and leading axes are in test_layouts.py.
"""Query head h reads key head h // (Hq / Hk)."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_close, check, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


@pytest.mark.parametrize("queries", [1, 3, QUERY_BLOCK + 1])
def test_heads_are_grouped_not_tiled(backend, rng, dtype, queries):
    """Case 86: four query heads on two key heads read 0, 0, 1, 1."""
    for heads, kv_heads in ((4, 2), (6, 2), (6, 3), (5, 1), (3, 3)):
        q, k, _ = qkv(rng, dtype, heads=heads, kv_heads=kv_heads, queries=queries, keys=9)
        number = np.arange(kv_heads, dtype=np.float64)
        v = np.broadcast_to(number[:, None, None], (2, kv_heads, 9, 3)).astype(dtype)
        wanted = np.repeat(number, heads // kv_heads)[:, None, None]
        out = sdpa(q, k, v)
        assert_close(out, np.broadcast_to(wanted, out.shape), context=f"{heads} {kv_heads}")


@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize(
    "shape",
    [(1, KEY_CHUNK + 3), (1, 2 * KEY_CHUNK + 1), (3, KEY_CHUNK + 1), (5, 33), (9, KEY_TILE + 1)],
)
def test_groups(backend, rng, group, shape):
    """Case 86: group sizes 1 to 8 in decode, short and prefill calls."""
    queries, keys = shape
    for kv_heads in (1, 2):
        q, k, v = qkv(
            rng, lead=(2,), heads=group * kv_heads, kv_heads=kv_heads, queries=queries, keys=keys,
            dim=16, dv=12,
        )  # fmt: skip
        check(q, k, v)
        check(q, k, v, is_causal=True, q_offset="lower_right", kv_lengths=[keys, keys - 2])


@pytest.mark.parametrize("queries", [1, QUERY_BLOCK - 1, QUERY_BLOCK + 1])
@pytest.mark.parametrize("group", [2, 3, 7])
def test_groups_with_per_head_options(backend, rng, dtype, group, queries):
    """Masks, slopes and sinks go by query head, not by key head."""
    heads, keys = 2 * group, KEY_TILE + 3
    q, k, v = qkv(
        rng, dtype, lead=(2,), heads=heads, kv_heads=2, queries=queries, keys=keys, dim=6, dv=5
    )
    check(
        q, k, v, rng.random((2, heads, 1, keys)) < 0.7, bias=draw(rng, (heads, queries, 1)),
        alibi_slopes=draw(rng, heads), sinks=draw(rng, heads), q_offset=[keys - queries, 0],
        softcap=4.0, weights=True,
    )  # fmt: skip
    check(q, k, v, draw(rng, (heads, 1, keys)), alibi_slopes=draw(rng, (2, heads)))
    check(q, k, v, draw(rng, (heads, queries, keys)), is_causal=True, window=(9, 0))


@pytest.mark.parametrize("heads", [8, 32])
def test_one_key_head_for_all(backend, rng, dtype, heads):
    """Case 86: multi-query attention, with and without expansion of the key head."""
    q, k, v = qkv(rng, dtype, heads=heads, kv_heads=1, queries=3, keys=KEY_CHUNK + 1)
    out = check(q, k, v)
    shape = (2, heads, KEY_CHUNK + 1)
    wide = sdpa(q, np.broadcast_to(k, (*shape, 4)), np.broadcast_to(v, (*shape, 6)))
    assert_close(out, wide.astype(np.float64))


@pytest.mark.parametrize(
    ("heads", "key_heads", "value_heads"),
    [(6, 4, 4), (2, 4, 4), (4, 0, 0), (1, 2, 2), (4, 2, 1), (4, 1, 2), (4, 4, 2), (3, 2, 3)],
)
def test_head_counts_that_do_not_fit(backend, rng, heads, key_heads, value_heads):
    """Cases 75, 77, 86: not divisible, more key heads than query heads, none, or unequal."""
    q = draw(rng, (2, heads, 3, 8))
    k, v = draw(rng, (2, key_heads, 5, 8)), draw(rng, (2, value_heads, 5, 6))
    with pytest.raises(ValueError, match="key|value"):
        sdpa(q, k, v)
    with pytest.raises(ValueError, match="key|value"):
        sdpa(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="bshd")


@pytest.mark.parametrize("kv_heads", [0, 2])
def test_no_query_heads(backend, rng, dtype, kv_heads):
    """Case 75: no query heads give an empty result, whatever the key heads are."""
    q, k = draw(rng, (2, 0, 3, 8), dtype), draw(rng, (2, kv_heads, 5, 8), dtype)
    v = draw(rng, (2, kv_heads, 5, 6), dtype)
    out, lse, weights = sdpa(q, k, v, return_lse=True, return_weights=True)
    assert out.shape == (2, 0, 3, 6) and lse.shape == (2, 0, 3) and weights.shape == (2, 0, 3, 5)
