# SPDX-License-Identifier: MIT
# The causal mask, its alignment, and its company with every other option.
# Used by the suite, on every backend.
# Windows are in test_window.py, offsets and lengths as such in test_lengths_offsets.py.
"""Row i sees the keys up to i + q_offset; invisible values are poisoned with 1e6."""

import itertools

import numpy as np
import pytest
from cases import ALL_SIZES, KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_close, check, draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


def test_alignment(backend, dtype):
    """Case 35: queries start at key 0 by default; "lower_right" puts them at the end."""
    q, k = np.zeros((1, 1, 2, 3), dtype), np.zeros((1, 1, 5, 3), dtype)
    v = np.arange(5).astype(dtype).reshape(1, 1, 5, 1)
    for options, wanted in (
        ({}, [0, 0.5]),
        ({"q_offset": 0}, [0, 0.5]),
        ({"q_offset": "lower_right"}, [1.5, 2.0]),
        ({"q_offset": 3}, [1.5, 2.0]),
        ({"q_offset": -1}, [0, 0]),
        ({"q_offset": 100}, [2, 2]),
        ({"q_offset": "lower_right", "kv_lengths": 3}, [0.5, 1.0]),
    ):
        got = sdpa(q, k, v, is_causal=True, **options)
        assert_close(got.ravel(), np.array(wanted), context=str(options))
        off = sdpa(q, k, v, is_causal=False, **options)
        assert_close(off.ravel(), np.full(2, 1.0 if "kv_lengths" in options else 2.0))


def causal_pairs():
    return list(itertools.product(ALL_SIZES, ALL_SIZES, ("upper", "lower")))


@pytest.mark.slow
def test_no_leak_at_any_size(backend, rng, sample):
    """Case 39: every pair of lengths around tile edges, both alignments."""
    for queries, keys, corner in sample(causal_pairs(), 150):
        q, k, v = qkv(rng, lead=(), heads=2, queries=queries, keys=keys, dim=3, dv=2)
        offset = 0 if corner == "upper" else "lower_right"
        last = queries - 1 if corner == "upper" else keys - 1
        k[:, last + 1 :] = np.nan
        v[:, last + 1 :] = 1e6
        check(q, k, v, is_causal=True, q_offset=offset, context=f"{queries} {keys} {corner}")


@pytest.mark.parametrize("queries", [2, QUERY_BLOCK, QUERY_BLOCK + 1, 2 * QUERY_BLOCK + 1])
def test_each_row_sees_exactly_its_keys(backend, rng, queries):
    """Case 39: a leak or a dropped key at the diagonal of any tile is as large as 1e6."""
    keys = queries + KEY_TILE + 1
    q, k, v = qkv(rng, lead=(), heads=1, queries=queries, keys=keys, dim=4, dv=keys)
    v[:] = np.eye(keys, dtype=np.float32) * 1e6
    for offset in (0, -3, 1, KEY_TILE - 1, KEY_TILE, "lower_right"):
        first = keys - queries if offset == "lower_right" else offset
        seen = sdpa(q, k, v, is_causal=True, q_offset=offset)[0] != 0
        assert (seen == np.tri(queries, keys, first, dtype=bool)).all(), offset


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_chunks_against_a_growing_prefix(backend, rng, chunk, kv_heads):
    """Case 38: prefill in chunks equals one causal call."""
    n = 130
    q, k, v = qkv(rng, lead=(2,), heads=3, kv_heads=kv_heads, queries=n, keys=n, dim=8, dv=5)
    whole = check(q, k, v, is_causal=True)
    parts = []
    for start in range(0, n, chunk):
        end = min(n, start + chunk)
        parts.append(
            sdpa(
                q[:, :, start:end],
                k[:, :, :end],
                v[:, :, :end],
                is_causal=True,
                q_offset="lower_right",
            )  # fmt: skip
        )
    assert_close(np.concatenate(parts, axis=2), whole.astype(np.float64))


OPTIONS = {
    "rank": (2, 3, 4, 5),
    "queries": (1, 5, QUERY_BLOCK + 1),
    "results": ("out", "lse", "weights", "both"),
    "softcap": (0.0, 4.0),
    "window": (None, (3, 2)),
    "mask": (None, "bool", "float", "bias"),
    "threads": (1, 2),
    "heads": ("equal", "grouped"),
}


@pytest.mark.slow
def test_no_option_drops_the_causal_mask(backend, rng, dtype, sample):
    """Case 43: future keys stay hidden in every combination of options."""
    for combination in sample(itertools.product(*OPTIONS.values()), 60):
        o = dict(zip(OPTIONS, combination))
        queries, keys = o["queries"], o["queries"] + 4
        lead = {2: (), 3: (), 4: (2,), 5: (2, 3)}[o["rank"]]
        kv_heads = 2 if o["heads"] == "grouped" else 4
        q, k, v = qkv(
            rng, dtype, lead=lead, heads=4, kv_heads=kv_heads, queries=queries, keys=keys, dv=3
        )
        if o["rank"] == 2:
            q, k, v = q[0], k[0], v[0]
        v[..., queries:, :] = 1e6 if dtype != np.float16 else 6e4
        options = {"is_causal": True, "softcap": o["softcap"], "window": o["window"]}
        if o["mask"] == "bool":
            options["attn_mask"] = rng.random((queries, keys)) < 0.8
        elif o["mask"]:
            name = "bias" if o["mask"] == "bias" else "attn_mask"
            options[name] = draw(rng, (queries, keys))
        with fastattn.threads(o["threads"]):
            check(q, k, v, weights=o["results"] in ("weights", "both"), context=str(o), **options)
            if o["results"] == "out":
                assert (abs(sdpa(q, k, v, **options).astype(np.float64)) < 1e3).all(), o


def test_causal_together_with_masks(backend, rng, dtype):
    """Case 45: both apply; a row that only sees masked keys is empty."""
    padding = np.array([0, 1, 1, 0, 0, 1, 0], bool)
    q, k, v = qkv(rng, dtype, lead=(2,), heads=13, queries=7, keys=7, dim=37, dv=5)
    out = check(q, k, v, padding, is_causal=True, weights=True)
    assert (out[..., 0, :] == 0).all()
    bias = draw(rng, (13, 7, 7), np.float32)
    check(q, k, v, bias=bias, is_causal=True, weights=True)
    upper = bias + np.triu(np.full((7, 7), 1e6, np.float32), 1)
    check(q, k, v, bias=upper, is_causal=True, weights=True)
    check(q, k, v, upper, is_causal=True, bias=bias)
    check(q, k, v, padding, bias=upper, is_causal=True)


@pytest.mark.parametrize("queries", [1, 2, 5, 16])
@pytest.mark.parametrize("keys", [KEY_CHUNK - 1, KEY_CHUNK + 1, 2 * KEY_CHUNK + 9])
def test_few_queries_many_keys(backend, rng, queries, keys):
    """Case 38: a decode step against a long prefix sees exactly its prefix."""
    q, k, v = qkv(rng, lead=(2,), heads=6, kv_heads=2, queries=queries, keys=keys, dim=8, dv=5)
    for offset in ("lower_right", keys // 2, 3, [0, KEY_CHUNK - 1]):
        last = keys if offset == "lower_right" else int(np.max(offset)) + queries
        v[:, :, last:] = np.nan
        check(q, k, v, is_causal=True, q_offset=offset, context=str(offset))
        v[:, :, last:] = 1.0
