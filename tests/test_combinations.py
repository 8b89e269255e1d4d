# SPDX-License-Identifier: MIT
# Every pair of options, in every way that a call may be computed.
# Used by the suite, on every backend.
# Single options are in their own files; random sets of many options in test_properties.py.
"""No two options get into each other's way, on short calls, prefill, decode and split keys."""

import itertools

import numpy as np
import pytest
from cases import CHUNK_EDGES, KEY_CHUNK, KEY_EDGES, KEY_SPLIT, KEY_TILE, QUERY_BLOCK, QUERY_EDGES
from check import check, draw, qkv

# name -> (batch, query heads, key heads, queries, keys)
WAYS = {
    "short": (2, 4, 2, 5, 9),
    "prefill": (2, 2, 1, QUERY_BLOCK + 1, KEY_TILE + 3),
    "wide prefill": (1, 3, 1, 2 * QUERY_BLOCK + 3, 2 * KEY_TILE + 1),
    "decode": (2, 4, 2, 1, 2 * KEY_CHUNK + 1),
    "decode of some": (2, 2, 2, 3, KEY_CHUNK + 2),
    "split": (1, 2, 1, 9, KEY_SPLIT + 3),
}
OPTIONS = [
    "causal", "causal at the end", "bool mask", "key padding", "float mask", "double mask",
    "row bias", "bias", "window", "open window", "softcap", "negative scale", "lengths",
    "offsets", "slopes", "slopes per entry", "sinks", "bshd", "weights",
]  # fmt: skip


def made(rng, names, batch, heads, queries, keys):
    """Keyword arguments for the named options; None if two of them set the same argument."""
    made_of = {
        "causal": {"is_causal": True},
        "causal at the end": {"is_causal": True, "q_offset": "lower_right"},
        "bool mask": {"attn_mask": rng.random((batch, 1, queries, keys)) < 0.7},
        "key padding": {"attn_mask": rng.random(keys) < 0.7},
        "float mask": {"attn_mask": draw(rng, (heads, 1, keys))},
        "double mask": {"attn_mask": np.where(rng.random((queries, keys)) < 0.2, -np.inf, 0.5)},
        "row bias": {"bias": draw(rng, (queries, 1), np.float16)},
        "bias": {"bias": draw(rng, (batch, heads, queries, keys))},
        "window": {"window": (keys // 3, 1)},
        "open window": {"window": (-1, 2)},
        "softcap": {"softcap": 1.5},
        "negative scale": {"scale": -0.4},
        "lengths": {"kv_lengths": rng.integers(0, keys + 1, batch)},
        "offsets": {"q_offset": rng.integers(-2, keys + 2, batch)},
        "slopes": {"alibi_slopes": 2.0 ** -np.arange(1, heads + 1)},
        "slopes per entry": {"alibi_slopes": draw(rng, (batch, heads), size=0.1)},
        "sinks": {"sinks": draw(rng, heads)},
        "bshd": {"layout": "bshd"},
        "weights": {"weights": True},
    }
    options = {}
    for name in names:
        if set(options) & set(made_of[name]) - {"is_causal"}:
            return None
        options |= made_of[name]
    return options


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("first", OPTIONS)
def test_pairs_of_options(backend, rng, real, way, first):
    """Case 43 and its kind: an option that is honoured alone only."""
    batch, heads, kv_heads, queries, keys = WAYS[way]
    sizes = {"lead": (batch,), "heads": heads, "kv_heads": kv_heads, "dim": 9, "dv": 5}
    others = OPTIONS[OPTIONS.index(first) + 1 :]
    if way in ("wide prefill", "split") or real == np.float64:
        others = others[::4]
    for second in others:
        options = made(rng, (first, second), batch, heads, queries, keys)
        if options is None:
            continue
        q, k, v = qkv(rng, real, queries=queries, keys=keys, **sizes)
        if "kv_lengths" in options:
            for entry, length in enumerate(options["kv_lengths"]):
                k[entry, :, length:], v[entry, :, length:] = np.nan, 1e6
        if options.get("layout") == "bshd":
            q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
        check(q, k, v, context=f"{first} + {second}", **options)


@pytest.mark.slow
@pytest.mark.parametrize("n_options", [3, 5, 8])
def test_many_options_at_edges(backend, rng, real, sample, n_options):
    """Sets of options with sizes around the edges of blocks, tiles and chunks."""
    shapes = [
        *itertools.product(QUERY_EDGES, KEY_EDGES),
        *itertools.product((1, 2, 3, 4), CHUNK_EDGES),
    ]
    for queries, keys in sample(shapes, 20):
        group, kv_heads = int(rng.integers(1, 9)), int(rng.integers(1, 3))
        options = None
        while options is None:
            names = rng.permutation(OPTIONS)[: rng.integers(1, n_options + 1)]
            options = made(rng, names, 2, group * kv_heads, queries, keys)
        q, k, v = qkv(
            rng, real, heads=group * kv_heads, kv_heads=kv_heads, queries=queries, keys=keys,
            dim=int(rng.integers(1, 40)), dv=int(rng.integers(1, 40)),
        )  # fmt: skip
        if options.get("layout") == "bshd":
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        check(q, k, v, context=f"{sorted(names)} {queries} {keys}", **options)
