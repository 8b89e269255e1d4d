# SPDX-License-Identifier: MIT
# Packed ragged batches: every option, both alignments, empty sequences, tails, many sequences.
# Used by the suite, on every backend.
# Arrays, out=, errors, determinism and memory are in test_varlen_arrays.py.
"""varlen_attention gives each sequence what it gets on its own, and tail tokens nothing."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_SPLIT, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, draw
from check_varlen import (
    CHUNKED,
    DECODE,
    PROMPTS,
    SHORT,
    TILES,
    alone,
    assert_same,
    check_varlen,
    cumulated,
    packed,
    some_mixes,
)

import fastattn

varlen = fastattn.varlen_attention
F = np.float32
LOWER = {"is_causal": True, "q_offset": "lower_right"}


def test_by_hand(backend, dtype):
    """Equal scores: the mean of what is visible; a tail, an empty and a keyless sequence."""
    q, k = np.zeros((7, 1, 2), dtype), np.zeros((7, 1, 2), dtype)
    v = np.array([1, 3, 8, 2, 4, 6, 100], dtype).reshape(7, 1, 1)
    cu_q, cu_k = [0, 2, 2, 5, 6], [0, 2, 3, 6, 6]
    for given, means, counts in (
        ({}, [2, 2, 4, 4, 4, 0, 0], [2, 2, 3, 3, 3, 0, 0]),
        ({"is_causal": True}, [1, 2, 2, 3, 4, 0, 0], [1, 2, 1, 2, 3, 0, 0]),
        ({"window": 0}, [1, 3, 2, 4, 6, 0, 0], [1, 1, 1, 1, 1, 0, 0]),
    ):
        out, lse = varlen(q, k, v, cu_q, cu_k, return_lse=True, **given)
        assert_close(out.ravel(), np.array(means, float))
        with np.errstate(divide="ignore"):
            assert_close(lse, np.log([counts]))
        assert not out[5:].any()
    out = varlen(q, k, v, [0, 4, 6], [0, 2, 6], **LOWER)
    assert_close(out.ravel(), np.array([0, 0, 1, 2, 14 / 3, 5, 0]))


def test_ragged_batches(backend, rng, dtype, sample):
    """Prompts, decoding, prefill in chunks and odd ones, with and without a causal mask."""
    for pairs in some_mixes(sample, dtype):
        arrays = packed(rng, dtype, pairs)
        for options in ({}, {"is_causal": True}, LOWER):
            check_varlen(*arrays, context=f"{pairs} {options}", **options)
    q, k, v, cu, _ = packed(rng, dtype, PROMPTS[:3], heads=3, kv_heads=3, dim=8, tails=(0, 0))
    check_varlen(q, k, v, cu, cu, is_causal=True)


def test_every_option(backend, rng, dtype, sample):
    """Alone and together; offsets and slopes may be each sequence's own."""
    for pairs in some_mixes(sample, dtype):
        n, arrays = len(pairs), packed(rng, dtype, pairs)
        several = [
            {"scale": -0.7, "softcap": 0.9},
            {"scale": 0, "window": (3, 1), "q_offset": "lower_right"},
            {"window": (5, 0), "q_offset": rng.integers(-3, 9, n), "sinks": draw(rng, 4)},
            {"alibi_slopes": draw(rng, 4) / 8, "softcap": None, **LOWER},
            {"alibi_slopes": draw(rng, (n, 4)) / 8, "q_offset": rng.integers(-3, 9, n)},
            {"sinks": [0.0, -np.inf, 2.0, 1.0], "is_causal": True, "q_offset": -1},
            {"window": 4, "alibi_slopes": draw(rng, (n, 4)), "softcap": 3.0, **LOWER},
            {"window": (-1, 2), "scale": 2.0, "q_offset": 1},
            {"window": (None, -1), "sinks": draw(rng, 4, np.float64), **LOWER},
        ]
        for options in sample(several, 4):
            check_varlen(*arrays, context=f"{pairs} {options}", **options)


def test_lower_right_is_each_sequences_own(backend, rng, dtype):
    """Keys less queries of each; where that is negative, the first rows see nothing."""
    pairs = [(5, 9), (7, 2), (3, 0), (0, 4), (1, 30), (QUERY_BLOCK + 9, QUERY_BLOCK)]
    arrays = packed(rng, dtype, pairs)
    for options in ({"is_causal": True}, {"window": (2, 1)}):
        out, lse = check_varlen(*arrays, q_offset="lower_right", **options)
        same = varlen(*arrays, q_offset=[k - q for q, k in pairs], return_lse=True, **options)
        assert_bits_equal(out, same[0])
        assert_bits_equal(lse, same[1])
    out, lse = varlen(*arrays, return_lse=True, **LOWER)
    for blind in (slice(5, 10), slice(12, 15), slice(16, 25)):
        assert not out[blind].any() and np.isneginf(lse[:, blind]).all()


@pytest.mark.parametrize("offset", [-1, -1000, 3, 1000, -(1 << 62), 1 << 62, (1 << 63) - 1])
def test_offsets_of_any_size(backend, rng, offset):
    """One for all or one of several: not clamped, no overflow, no look at the next sequence."""
    arrays = packed(rng, F, [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 1), (2, 2)])
    for options in ({"is_causal": True}, {"window": (3, 2)}):
        check_varlen(*arrays, q_offset=offset, context=str(options), **options)
        check_varlen(*arrays, q_offset=[1, offset, 0, offset], context=str(options), **options)
    assert_bits_equal(varlen(*arrays, q_offset=offset), varlen(*arrays))


def test_slopes_of_each_sequence(backend, rng, dtype):
    """(heads,) stands for every sequence; (sequences, heads) also if these numbers are equal."""
    for pairs in ([(3, 7), (2, 9), (1, 5), (4, 4)], TILES):
        arrays = packed(rng, dtype, pairs)
        slopes = draw(rng, (4, 4), np.float64) / 4
        check_varlen(*arrays, alibi_slopes=slopes)
        check_varlen(*arrays, alibi_slopes=slopes.T.astype(np.float16), **LOWER)
        one = varlen(*arrays, alibi_slopes=slopes[1])
        assert_bits_equal(varlen(*arrays, alibi_slopes=np.tile(slopes[1], (4, 1))), one)


def test_sinks_of_rows_without_keys(backend, rng, dtype):
    """A row of a sequence has the sink even if it sees no key; a tail token has nothing."""
    q, k, v, cu_q, cu_k = packed(rng, dtype, SHORT)
    sinks = np.array([1.5, -np.inf, -3.0, 0.25], F)
    out, lse = check_varlen(q, k, v, cu_q, cu_k, sinks=sinks)
    blind = slice(cu_q[3], cu_q[4])
    assert not out[blind].any()
    assert_close(lse[:, blind], np.broadcast_to(sinks[:, None], (4, 3)).astype(np.float64))
    assert np.isneginf(lse[:, cu_q[-1] :]).all()
    check_varlen(q, k, v, cu_q, cu_k, sinks=sinks, window=(0, 0), q_offset=1 << 40)


@pytest.mark.parametrize("heads", [(1, 1), (6, 3), (5, 1), (2, 2)], ids=str)
def test_heads_and_sizes(backend, rng, dtype, heads):
    """Grouped heads; value sizes that differ from those of keys."""
    for dim, dv in ((1, 1), (7, 17), (33, 16)):
        sizes = {"heads": heads[0], "kv_heads": heads[1], "dim": dim, "dv": dv}
        check_varlen(*packed(rng, dtype, SHORT, **sizes), context=f"{dim} {dv}")
    arrays = packed(rng, dtype, [(3, 5), (1, 2)], heads=heads[0], kv_heads=heads[1], tails=(0, 0))
    arrays[2][...] = np.arange(heads[1])[:, None]
    out = varlen(*arrays).astype(np.float64)
    wanted = np.arange(heads[0]) // (heads[0] // heads[1])
    assert_close(out, np.broadcast_to(wanted[:, None], out.shape), dtype=dtype)


EMPTY = [
    [(0, 0), (3, 4)],
    [(3, 4), (0, 0)],
    [(0, 0), (0, 0), (3, 4), (0, 0), (0, 0), (2, 5), (0, 0)],
    [(0, 4), (3, 4)],
    [(3, 4), (0, 4)],
    [(3, 0), (3, 4), (2, 0)],
    [(0, 5), (0, 6)],
    [(4, 0), (1, 0)],
    [(0, 0), (0, 0)],
    [],
]


@pytest.mark.parametrize("tails", [(0, 0), (2, 0), (4, 5)], ids=str)
def test_empty_sequences(backend, rng, dtype, tails):
    """Anywhere, on either side, all of them, none at all; also where T = 0."""
    for pairs in EMPTY:
        arrays, n = packed(rng, dtype, pairs, tails=tails), len(pairs)
        check_varlen(*arrays, context=f"{pairs}", **LOWER)
        own = {"q_offset": np.arange(n), "alibi_slopes": draw(rng, (n, 4)), "sinks": draw(rng, 4)}
        check_varlen(*arrays, window=2, context=f"{pairs}", **own)


def test_tails_change_nothing(backend, rng, dtype):
    """Tokens past the last sequence: other sequences have the bits of a call without them."""
    for pairs in (SHORT, CHUNKED):
        q, k, v, cu_q, cu_k = packed(rng, dtype, pairs, tails=(QUERY_BLOCK + 3, KEY_TILE + 2))
        n_rows, n_keys = cu_q[-1], cu_k[-1]
        for options in ({}, {"sinks": draw(rng, 4), **LOWER}):
            got = check_varlen(q, k, v, cu_q, cu_k, **options)
            short = (q[:n_rows].copy(), k[:n_keys].copy(), v[:n_keys].copy(), cu_q, cu_k)
            want = varlen(*short, return_lse=True, **options)
            assert_same(backend, got[0][:n_rows], want[0])
            assert_same(backend, got[1][:, :n_rows], want[1])


def test_nan_stays_in_its_sequence(backend, rng, dtype):
    """Rows that see a NaN or an infinity are NaN or infinite, and no others."""
    for pairs in (SHORT[:1] * 3, [(QUERY_BLOCK + 1, 40), (3, 5), (1, KEY_CHUNK)]):
        for name, number in (
            ("query", np.nan),
            ("key", np.nan),
            ("value", np.nan),
            ("value", -np.inf),
        ):
            q, k, v, cu_q, cu_k = packed(rng, dtype, pairs)
            if name == "query":
                q[cu_q[1], 2, 1] = number
            elif name == "key":
                k[cu_k[1] + 3, 1, 0] = number
            else:
                v[cu_k[1] + 3, 1, 2] = number
            out, _ = check_varlen(q, k, v, cu_q, cu_k, context=name)
            bad = ~np.isfinite(out.astype(F)).all(axis=(1, 2))
            assert bad[cu_q[1]] and not bad[: cu_q[1]].any() and not bad[cu_q[2] :].any()
            check_varlen(q, k, v, cu_q, cu_k, context=name, **LOWER)


def test_thousands_of_tiny_sequences(backend, rng, dtype):
    """Up to three tokens each; the value tells whose it is, and repeats have equal results."""
    some = rng.integers(0, 4, (40, 2))
    times = 75 if dtype == np.float32 else 10
    q, k, v, *few = packed(rng, dtype, some, heads=2, kv_heads=1, tails=(0, 0))
    want = check_varlen(q, k, v, *few, **LOWER)
    cu_q, cu_k = (cumulated(np.tile(n, times)) for n in some.T)
    q, k, v = (np.tile(x, (times, 1, 1)) for x in (q, k, v))
    out, lse = varlen(q, k, v, cu_q, cu_k, return_lse=True, **LOWER)
    assert_same(backend, out, np.tile(want[0], (times, 1, 1)))
    assert_same(backend, lse, np.tile(want[1], (1, times)))
    if dtype == np.float32:
        v[..., 0] = np.repeat(np.arange(40 * times), np.diff(cu_k))[:, None] + 1
        out = varlen(q, k, v, cu_q, cu_k, **LOWER)[..., 0]
        own = np.repeat(np.arange(40 * times), np.diff(cu_q))[:, None] + 1
        assert ((out == 0) | (abs(out - own) < 0.1)).all()


@pytest.mark.parametrize("place", [0, 37, 79])
def test_one_long_among_tiny_sequences(backend, rng, place):
    """Its keys are split and its rows are shared out; the tiny ones have their own bits."""
    for long in ((2 * QUERY_BLOCK + 1, 4 * KEY_TILE + 1), (1, KEY_SPLIT + 5), (2, KEY_SPLIT)):
        pairs = rng.integers(0, 3, (79, 2)).tolist()
        pairs.insert(place, long)
        arrays = packed(rng, F, pairs, heads=2, kv_heads=1, dim=4, dv=3)
        got = check_varlen(*arrays, **LOWER)
        q, k, v, cu_q, cu_k = arrays
        for i in {0, place, 79}:
            want = alone(i, *arrays, **LOWER)
            rows = slice(cu_q[i], cu_q[i + 1])
            assert_same(backend, got[0][rows], want[0])
            assert_same(backend, got[1][:, rows], want[1])


def test_random_batches(backend, rng, dtype):
    """Any number of sequences of any lengths, heads, sizes and options."""
    lengths = [0, 0, 1, 1, 2, 3, 7, 16, 33, QUERY_BLOCK, QUERY_BLOCK + 1, KEY_TILE, KEY_TILE + 1]
    for _ in range(6):
        n = int(rng.integers(0, 8))
        pairs = rng.choice(lengths, (n, 2))
        if rng.random() < 0.3:
            pairs[:, 0] = np.minimum(pairs[:, 0], 1)
        heads, kv_heads = (int(x) for x in rng.choice([(1, 1), (4, 2), (3, 1), (2, 2)]))
        sizes = {"heads": heads, "kv_heads": kv_heads, "tails": rng.integers(0, 4, 2)}
        dim, dv = (int(x) for x in rng.choice([1, 4, 8, 15, 32], 2))
        arrays = packed(rng, dtype, pairs, dim=dim, dv=dv, **sizes)
        every = {
            "is_causal": True,
            "q_offset": [rng.integers(-40, 40, n), "lower_right", 5][rng.integers(3)],
            "window": (int(rng.integers(-1, 40)), int(rng.integers(-1, 9))),
            "scale": float(rng.standard_normal()),
            "softcap": 1.5,
            "alibi_slopes": draw(rng, [(heads,), (n, heads)][rng.integers(2)]) / 4,
            "sinks": draw(rng, heads),
        }
        options = {name: x for name, x in every.items() if rng.random() < 0.4}
        check_varlen(*arrays, context=f"{pairs.tolist()} {options}", **options)


def test_serving_step(backend, rng, dtype):
    """Decoding and prefill of sequences of very different lengths in one call."""
    pairs = [*DECODE, (30, 30), (1, 9), (QUERY_BLOCK + 2, KEY_CHUNK + 3), (2, 1), *DECODE[:2]]
    window = [None, (100, 0)][rng.integers(2)]
    check_varlen(*packed(rng, dtype, pairs, heads=4, kv_heads=1), window=window, **LOWER)
