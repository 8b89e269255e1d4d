# SPDX-License-Identifier: MIT
# Packed ragged batches and their expected values, one sequence after the other.
# Used by test_varlen*.py; the formula and the tolerance are check.py's.
# It never calls fastattn to find an expected value.
"""What varlen_attention must return: each sequence on its own, and nothing for the tails."""

from __future__ import annotations

import numpy as np
from cases import DECODE_TILE, KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import Expected, accumulator, assert_bits_equal, assert_close, attend, draw, expected
from check_scores import wide_scores

import fastattn

# (queries, keys) of each sequence.
SHORT = [(5, 9), (0, 4), (1, 1), (3, 0), (7, 2), (0, 0), (2, 2)]
TILES = [(QUERY_BLOCK + 1, KEY_TILE + 3), (2, 1), (1, KEY_CHUNK + 5), (3, 2 * KEY_CHUNK + 1)]
DECODE = [(1, n) for n in (3, 0, KEY_CHUNK, 1, KEY_CHUNK + 1, DECODE_TILE, 2 * KEY_CHUNK + 1)]
PROMPTS = [(n, n) for n in (17, 1, QUERY_BLOCK + 1, 0, KEY_TILE + 1, 2)]
CHUNKED = [(8, 40), (1, 77), (QUERY_BLOCK, 130), (3, 3), (20, 7), (1, 200)]  # prefill in chunks
MIXES = [SHORT, TILES, DECODE, PROMPTS, CHUNKED]


def some_mixes(sample, dtype):
    """The short sequences and two other mixes for float32, one for dtypes that take longer."""
    return [SHORT, *sample(MIXES[1:], 2 if dtype == np.float32 else 1)]


def cumulated(lengths, dtype=np.int32):
    """cu_seqlens of sequences of these lengths."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, int))]).astype(dtype)


def packed(rng, dtype, pairs, *, heads=4, kv_heads=2, dim=5, dv=6, tails=(2, 3)):
    """Query, key, value and both cu_seqlens; the tokens past the last sequence are poisoned."""
    cu_q, cu_k = (cumulated(n) for n in np.asarray(pairs, int).reshape(-1, 2).T)
    q = draw(rng, (cu_q[-1] + tails[0], heads, dim), dtype)
    k = draw(rng, (cu_k[-1] + tails[1], kv_heads, dim), dtype)
    v = draw(rng, (cu_k[-1] + tails[1], kv_heads, dv), dtype)
    q[cu_q[-1] :], k[cu_k[-1] :], v[cu_k[-1] :] = np.nan, np.nan, np.inf
    return q, k, v, cu_q, cu_k


def sequences(cu_q, cu_k, *, q_offset=0, alibi_slopes=None, **options):
    """(rows, keys, options) of each sequence: two slices, and the options that are its own."""
    n = len(cu_q) - 1
    for i in range(n):
        own = dict(options, q_offset=q_offset)
        if not isinstance(q_offset, str):
            own["q_offset"] = int(np.broadcast_to(np.asarray(q_offset), (n,))[i])
        if alibi_slopes is not None:
            slopes = np.asarray(alibi_slopes)
            own["alibi_slopes"] = slopes[i] if slopes.ndim == 2 else slopes
        rows, keys = slice(int(cu_q[i]), int(cu_q[i + 1])), slice(int(cu_k[i]), int(cu_k[i + 1]))
        yield rows, keys, own


def expected_varlen(query, key, value, cu_q, cu_k, *, score="scaled_dot", **options):
    """The results in wide floats, without weights."""
    name = np.dtype(query.dtype).name
    wide = np.longdouble if name == "float64" else np.float64
    tokens, heads = query.shape[:2]
    out, size, out_slack = (np.zeros((tokens, heads, value.shape[-1]), wide) for _ in range(3))
    lse, lse_slack = np.full((heads, tokens), -np.inf, wide), np.zeros((heads, tokens), wide)
    for rows, keys, own in sequences(cu_q, cu_k, **options):
        if rows.start == rows.stop:
            continue
        arrays = query[rows], key[keys], value[keys]
        if score == "scaled_dot":
            want = expected(*arrays, layout="bshd", **own)
        else:
            scores = wide_scores(score, query.dtype, own.pop("softcap", 0.0) or 0.0)
            want = attend(scores, *arrays, layout="bshd", **own)
        out[rows], size[rows], out_slack[rows] = want.out, want.size, want.out_slack
        lse[:, rows], lse_slack[:, rows] = want.lse, want.lse_slack
    return Expected(out, lse, None, size, out_slack, lse_slack, None, name)


def check_varlen(query, key, value, cu_q, cu_k, *, context="", **options):
    """Call fastattn into a poisoned `out`, compare out and lse; return them."""
    want = expected_varlen(query, key, value, cu_q, cu_k, **options)
    given = (query, key, value, cu_q, cu_k)
    before = [np.array(x) for x in given]
    out = np.full(want.out.shape, np.nan, query.dtype)
    got = fastattn.varlen_attention(*given, out=out, return_lse=True, **options)
    assert isinstance(got, tuple) and len(got) == 2 and got[0] is out
    assert_close(out, want.out, slack=want.out_slack, size=want.size, context=f"out {context}")
    assert got[1].dtype == accumulator(query.dtype)
    assert_close(got[1], want.lse, slack=want.lse_slack, context=f"lse {context}")
    assert not np.asarray(out[cu_q[-1] :]).any(), f"out of the tail {context}"
    for array, old in zip(given, before):
        assert_bits_equal(array, old, f"an argument was changed {context}")
    return got


def alone(i, query, key, value, cu_q, cu_k, **options):
    """Sequence i as the only one of a call of its own: (out, lse)."""
    rows, keys, own = list(sequences(cu_q, cu_k, **options))[i]
    cu_q, cu_k = [0, rows.stop - rows.start], [0, keys.stop - keys.start]
    given = (query[rows], key[keys], value[keys], cu_q, cu_k)
    return fastattn.varlen_attention(*given, return_lse=True, **own)


def assert_each_alone(backend, got, arrays, places=None, context="", **options):
    """Each sequence of `got` has the bits (on NumPy's backend: nearly) of its call alone.

    places[i], if given, are the rows of `got` where sequence i of the arrays lies.
    """
    for i, (rows, _, _) in enumerate(sequences(*arrays[3:], **options)):
        rows = rows if places is None else places[i]
        out, lse = alone(i, *arrays, **options)
        assert_same(backend, got[0][rows], out, f"out of sequence {i} {context}")
        assert_same(backend, got[1][:, rows], lse, f"lse of sequence {i} {context}")


def assert_same(backend, got, wanted, context=""):
    """Equal bits on the compiled backends, equal numbers on NumPy's."""
    if backend != "numpy":
        assert_bits_equal(got, wanted, context)
    dtype = got.dtype
    assert_close(got, wanted.astype(np.float64), dtype=dtype, context=context)
