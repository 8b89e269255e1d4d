# SPDX-License-Identifier: MIT
# Packed ragged batches with every kind of score.
# Used by the suite, on every backend.
# What has nothing to do with the score is in test_varlen*.py.
"""varlen_attention(..., score=...) gives each sequence what `attention` gives it alone."""

import re

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, draw
from check_scores import ALL_KINDS, some_score
from check_varlen import (
    DECODE,
    SHORT,
    TILES,
    assert_same,
    check_varlen,
    cumulated,
    packed,
    sequences,
    some_mixes,
)

import fastattn
from fastattn import scores

varlen = fastattn.varlen_attention
F = np.float32
LOWER = {"is_causal": True, "q_offset": "lower_right"}
ADDITIVE = ("additive", "concat")


def some_case(rng, kind, dtype, pairs, dim=5, key_dim=7, **sizes):
    """(score, arrays of a packed call) with keys of a size of their own where the score has one."""
    longest = max((keys for _, keys in pairs), default=0)
    score, size = some_score(rng, kind, dtype, dim, key_dim, longest)
    q, k, v, cu_q, cu_k = packed(rng, dtype, pairs, dim=dim, **sizes)
    keys = draw(rng, (*k.shape[:2], size), dtype)
    keys[cu_k[-1] :] = np.nan
    return score, (q, keys, v, cu_q, cu_k)


def alone(score, arrays, i, **options):
    """Sequence i by `attention` on its own arrays."""
    q, k, v, cu_q, cu_k = arrays
    rows, keys, own = list(sequences(cu_q, cu_k, **options))[i]
    given = q[rows], k[keys], v[keys]
    return rows, fastattn.attention(*given, score=score, layout="bshd", return_lse=True, **own)


def check_alone(backend, score, arrays, **options):
    out, lse = varlen(*arrays, score=score, return_lse=True, **options)
    for i in range(len(arrays[3]) - 1):
        rows, want = alone(score, arrays, i, **options)
        assert_same(backend, out[rows], want[0], f"out of sequence {i}")
        assert_same(backend, lse[:, rows], want[1], f"lse of sequence {i}")


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_ragged_batches(backend, rng, dtype, sample, kind):
    """Prompts, decoding and odd ones; empty sequences, sequences of one key, NaN past the ends."""
    for pairs in some_mixes(sample, dtype):
        score, arrays = some_case(rng, kind, dtype, pairs)
        for options in ({}, {"is_causal": True}, LOWER):
            check_varlen(*arrays, score=score, context=f"{pairs} {options}", **options)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_options(backend, rng, dtype, sample, kind):
    """Windows, offsets, sinks, and what not all scores have: softcaps and slopes."""
    for pairs in some_mixes(sample, dtype)[:2]:
        n = len(pairs)
        score, arrays = some_case(rng, kind, dtype, pairs)
        several = [
            {"window": (3, 1), "q_offset": "lower_right"},
            {"window": 2, "q_offset": rng.integers(-3, 9, n), "sinks": draw(rng, 4)},
            {"sinks": [0.0, -np.inf, 2.0, 1.0], **LOWER},
        ]
        if kind not in ADDITIVE:
            several += [
                {"softcap": 0.9, "alibi_slopes": draw(rng, (n, 4)) / 8, **LOWER},
                {"alibi_slopes": draw(rng, 4) / 8, "is_causal": True},
            ]
        for options in sample(several, 2):
            check_varlen(*arrays, score=score, context=f"{pairs} {options}", **options)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_each_sequence_has_the_bits_that_it_has_alone(backend, rng, dtype, kind):
    """Of `attention` on its arrays: also projections, short and long ones side by side."""
    for pairs in (SHORT, [(3, 40), (QUERY_BLOCK + 1, 33), (1, KEY_CHUNK + 5), (40, 2), (32, 32)]):
        score, arrays = some_case(rng, kind, dtype, pairs)
        check_alone(backend, score, arrays)
        check_alone(backend, score, arrays, window=(9, 3), **LOWER)


def test_additive_attention_sequence_by_sequence(backend, rng, dtype):
    """The function itself, in the other layout, with a vector for each head."""
    arrays = packed(rng, dtype, TILES, dim=9)
    v = draw(rng, (4, 9), dtype)
    out = varlen(*arrays, score=scores.Additive(v), **LOWER)
    q, k, value = (x.swapaxes(0, 1) for x in arrays[:3])
    for rows, keys, own in sequences(*arrays[3:], **LOWER):
        want = fastattn.additive_attention(q[:, rows], k[:, keys], value[:, keys], v, **own)
        assert_same(backend, out[rows], want.swapaxes(0, 1))


@pytest.mark.parametrize("without", ["query_weight", "key_weight", "hidden_bias", "attention_v"])
def test_optional_parameters_of_additive_scores(backend, rng, dtype, without):
    """Each left out in turn; vectors one a head."""
    score, arrays = some_case(rng, "additive", dtype, SHORT, dim=11, key_dim=11)
    parameters = {
        name: getattr(score, name)
        for name in ("attention_v", "query_weight", "key_weight", "hidden_bias")
    }
    parameters["attention_v"] = draw(rng, (4, 11), dtype)
    parameters[without] = None
    check_varlen(*arrays, score=scores.Additive(**parameters), **LOWER)


@pytest.mark.parametrize("kind", ["additive", "general", "cosine"])
def test_threads_change_no_bit(backend, rng, kind):
    """Nor does the order of the sequences."""
    pairs = [*TILES, *DECODE, (1, 3 * KEY_TILE), (70, 70)]
    score, (q, k, v, cu_q, cu_k) = some_case(rng, kind, F, pairs, tails=(0, 0))
    results = []
    for n in (1, 2, 5):
        with fastattn.threads(n):
            results.append(varlen(q, k, v, cu_q, cu_k, score=score, return_lse=True, **LOWER))
    for got in results[1:]:
        assert_bits_equal(got[0], results[0][0])
        assert_bits_equal(got[1], results[0][1])
    order = rng.permutation(len(pairs))
    rows, keys = (
        np.concatenate([np.arange(cu[i], cu[i + 1]) for i in order]) for cu in (cu_q, cu_k)
    )
    ends = (cumulated(np.diff(cu)[order]) for cu in (cu_q, cu_k))
    out = varlen(q[rows], k[keys], v[keys], *ends, score=score, **LOWER)
    assert_bits_equal(out, results[0][0][rows])


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_nan_stays_in_its_sequence(backend, rng, dtype, kind):
    """A key or a value that is NaN reaches the rows that see it, and no others."""
    pairs = [(3, 5), (QUERY_BLOCK + 1, 40), (3, 5)]
    for name in (1, 2):
        score, arrays = some_case(rng, kind, dtype, pairs)
        clean = varlen(*arrays, score=score, **LOWER)
        arrays[name][arrays[4][1] + 3, 1, 0] = np.nan
        out = varlen(*arrays, score=score, **LOWER)
        rows = slice(*arrays[3][1:3])
        assert np.isnan(out[rows].astype(F)).any() or (kind == "location" and name == 1)
        for others in (slice(0, rows.start), slice(rows.stop, None)):
            assert_bits_equal(out[others], clean[others])
        if kind != "location":  # the oracle's keys are not looked at either, but 0 * NaN is NaN
            check_varlen(*arrays, score=score, **LOWER)


def test_pooling_form(backend, rng, real):
    """One query of nothing for each of many sequences: sums to which only keys contribute."""
    lengths = rng.integers(0, 9, 700)
    cu = cumulated(lengths)
    x = draw(rng, (cu[-1], 1, 6), real)
    score = scores.Additive(draw(rng, 5, real), None, draw(rng, (6, 5), real), draw(rng, 5, real))
    zeros = np.broadcast_to(np.zeros(5, real), (700, 1, 5))
    out = varlen(zeros, x, x, np.arange(701), cu, score=score)
    logits = np.tanh(x[:, 0].astype(float) @ score.key_weight + score.hidden_bias)
    logits = logits @ score.attention_v
    for i in range(700):
        some = slice(cu[i], cu[i + 1])
        e = np.exp(logits[some])
        want = e @ x[some, 0] / max(e.sum(), 1e-300)
        assert_close(out[i, 0], want, dtype=real, slack=1e-5 if real == F else 0)


def test_extreme_numbers(backend, rng, real):
    """Vectors so large that tanh itself must be taken; keys so long that they need a scale."""
    score, arrays = some_case(rng, "additive", real, TILES[:2])
    large = scores.Additive(score.attention_v * 1e4, score.query_weight, score.key_weight * 30)
    check_varlen(*arrays, score=large, **LOWER)
    q, k, v, cu_q, cu_k = packed(rng, real, SHORT)
    k[3], k[5], k[8] = k[3] * 1e30, 0, k[8] * 1e-30
    check_varlen(q, k, v, cu_q, cu_k, score="cosine")
    check_varlen(q, k, v, cu_q, cu_k, score=scores.Cosine(1e-3), **LOWER)


def test_out_may_be_an_input(backend, rng, dtype):
    """The result is as with a fresh array."""
    score, (q, k, v, cu_q, cu_k) = some_case(rng, "additive", dtype, SHORT, kv_heads=4, dim=6)
    want = varlen(q, k, v, cu_q, cu_k, score=score)
    got = varlen(q, k, v, cu_q, cu_k, score=score, out=q)
    assert got is q
    assert_bits_equal(q, want)


def test_no_sequences(backend, rng, dtype):
    for kind in ALL_KINDS:
        for pairs in ([], [(0, 0)], [(3, 0), (0, 2)]):
            score, arrays = some_case(rng, kind, dtype, pairs)
            check_varlen(*arrays, score=score, context=f"{kind} {pairs}")


WRONG = [
    ({"score": "dot", "scale": 0.5}, ValueError, "scale"),
    ({"score": scores.Additive(np.ones(5, F)), "scale": 1.0}, ValueError, "scale"),
    ({"score": "euclid"}, ValueError, "score"),
    ({"score": None}, TypeError, "score"),
    ({"score": scores.General(np.ones((5, 6), F))}, ValueError, "weight"),
    ({"score": scores.General(np.ones((4, 5), F))}, ValueError, "weight"),
    ({"score": scores.Location(np.ones((5, 4), F))}, ValueError, "weight"),
    ({"score": scores.Concat(np.ones((9, 3), F), None)}, ValueError, "weight"),
    ({"score": scores.Additive(np.ones(4, F))}, ValueError, "query"),
    ({"score": scores.Additive(np.ones(5, F)), "softcap": 2.0}, ValueError, "softcap"),
    (
        {"score": scores.Additive(np.ones(5, F)), "alibi_slopes": np.ones((2, 4), F)},
        ValueError,
        "alibi_slopes",
    ),
    ({"score": scores.Additive(np.ones(5, F)), "alibi_slopes": [1.0]}, ValueError, "alibi_slopes"),
    ({"score": scores.Cosine(0.0)}, ValueError, "temperature"),
    ({"score": "dot", "key": np.ones((9, 2, 6), F)}, ValueError, "key"),
    (
        {"key": fastattn.prepare_additive_keys(np.ones((9, 2, 5), F), layout="bshd"),
         "score": scores.Additive(np.ones(5, F))}, TypeError, "key",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "name"), WRONG)
def test_errors_name_the_argument_and_write_nothing(backend, wrong, error, name):
    arguments = {
        "query": np.ones((6, 4, 5), F),
        "key": np.ones((9, 2, 5), F),
        "value": np.ones((9, 2, 6), F),
        "cu_seqlens_q": [0, 2, 5],
        "cu_seqlens_k": [0, 3, 8],
        "out": np.full((6, 4, 6), 7.5, F),
    }
    with pytest.raises(error, match=rf"^{re.escape(name)}: expected"):
        varlen(**arguments | wrong)
    assert (arguments["out"] == 7.5).all()
