# SPDX-License-Identifier: MIT
# Hard attention: which key a row takes, with every score and option.
# Used by the suite, on every backend.
# Drawn keys are in test_hard_sampled.py; layouts, out=, errors and memory in test_hard_arrays.py.
"""Each row is the value of the first key with the largest score, and nothing else."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_EDGES, KEY_TILE, QUERY_BLOCK, QUERY_EDGES
from check import assert_bits_equal, draw, qkv
from check_scores import ALL_KINDS, KINDS, some_score
from check_selection import SHAPES, check_hard, some_shapes, take_rows

import fastattn

hard = fastattn.hard_attention
F = np.float32


def whole_numbers(rng, queries, keys, dtype=F, heads=2, dim=4):
    """Arguments whose products are exact, so that many scores are equal."""
    q = rng.integers(-2, 3, (2, heads, queries, dim)).astype(dtype)
    k = rng.integers(-1, 2, (2, heads, keys, dim)).astype(dtype)
    return q, k, draw(rng, (2, heads, keys, 3), dtype)


def best(q, k):
    return (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)).argmax(axis=-1)


def test_by_hand(backend, dtype):
    q, k = np.array([[1, 0], [0, 1], [-1, -1]], dtype), np.array([[1, 2], [3, 1], [3, -4]], dtype)
    v = np.array([[10], [20], [30]], dtype)
    out, indices = hard(q, k, v, return_indices=True)
    assert indices.tolist() == [1, 0, 2] and out.ravel().tolist() == [20, 10, 30]
    assert_bits_equal(hard(q, k, v), out)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_score_and_option(backend, rng, dtype, kind, sample):
    """Grouped heads; additive scores take neither softcap nor slopes."""
    for queries, keys in some_shapes(sample, dtype):
        score, key_dim = some_score(rng, kind, dtype, 8, 5, keys)
        q, _, v = qkv(rng, dtype, heads=2, kv_heads=1, queries=queries, keys=keys, dim=8)
        k = draw(rng, (2, 1, keys, key_dim), dtype)
        options = [
            {},
            {"is_causal": True, "q_offset": "lower_right"},
            {"attn_mask": rng.random((2, 1, queries, keys)) < 0.6, "kv_lengths": [keys // 2, 0]},
            {"attn_mask": draw(rng, (2, 1, keys)), "bias": draw(rng, (queries, keys))},
            {"window": (keys // 2, 2), "q_offset": [1, keys // 3]},
        ]
        if kind in KINDS:
            options.append({"softcap": 0.7, "alibi_slopes": draw(rng, 2, size=0.1)})
        for given in sample(options, 2):
            check_hard(q, k, v, score=score, context=str(list(given)), **given)


@pytest.mark.parametrize("queries", QUERY_EDGES)
def test_edges_of_blocks_and_tiles(backend, rng, queries):
    """Exact scores: the one right index, also where all the best keys are in the last tile."""
    for keys in KEY_EDGES:
        q, k, v = whole_numbers(rng, queries, keys)
        out, indices = check_hard(q, k, v, score="dot", context=str(keys))
        assert_bits_equal(indices, best(q, k), str(keys))
        q[:], k[..., -1, :] = 1, 3
        assert (hard(q, k, v, return_indices=True)[1] == keys - 1).all()


def test_ties_go_to_the_first(backend, rng, dtype, sample):
    """All keys equal, or equal in pairs that lie in different tiles, chunks and vector lanes."""
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, queries=queries, keys=keys, dim=5)
        k[...] = k[:, :, :1]
        score, _ = some_score(rng, "additive", dtype, 5, 5, keys)
        for name in ("dot", "scaled_dot", "cosine", score):
            assert not hard(q, k, v, score=name, return_indices=True)[1].any()
        start = keys // 3
        late = np.arange(keys) >= start
        assert (hard(q, k, v, attn_mask=late, return_indices=True)[1] == start).all()
        k[...] = draw(rng, k.shape, dtype)
        half = keys // 2
        k[:, :, half : 2 * half] = k[:, :, :half]
        k[:, :, 2 * half :] = k[:, :, : keys - 2 * half]
        _, indices = check_hard(q, k, v)
        assert (indices < half).all()


def test_scores_that_softcap_makes_equal(backend, rng):
    """The largest is looked for after the softcap: tanh of both is 1."""
    q, v = np.ones((1, 2, 40, 1), F), draw(rng, (1, 2, 9, 3))
    k = np.array([-1, 0, 1e4, 2e4, 3e4, 0, 3e4, 5, 1], F).reshape(1, 1, 9, 1)
    k = np.broadcast_to(k, (1, 2, 9, 1))
    assert (hard(q, k, v, return_indices=True)[1] == 4).all()
    assert (hard(q, k, v, softcap=2.0, return_indices=True)[1] == 2).all()


def test_options_come_before_the_choice(backend, dtype):
    """Case 103: masks, biases and slopes decide, with the key that wins without them excluded."""
    q, k = np.ones((1, 1, 4, 2), dtype), np.zeros((1, 1, 5, 2), dtype)
    k[0, 0, :, 0] = [1, 2, 3, 4, 100]
    v = np.arange(5).astype(dtype).reshape(1, 1, 5, 1)

    def index(**options):
        return hard(q, k, v, score="dot", return_indices=True, **options)[1].ravel().tolist()

    assert index() == [4, 4, 4, 4]
    assert index(is_causal=True) == [0, 1, 2, 3]
    assert index(kv_lengths=3) == [2, 2, 2, 2]
    assert index(window=(0, 1), kv_lengths=4) == [1, 2, 3, 3]
    assert index(is_causal=True, q_offset=-2) == [-1, -1, 0, 1]
    assert index(bias=[0.0, 0.0, 0.0, 0.0, -98.0]) == [3, 3, 3, 3]
    assert index(attn_mask=[0.0, 0.0, 9.0, 0.0, -np.inf]) == [2, 2, 2, 2]
    assert index(alibi_slopes=[200.0]) == [0, 1, 2, 3]


def test_empty_rows(backend, rng, dtype):
    """No visible key: index -1 and zeros, also if the query or the hidden keys are NaN."""
    q, k, v = qkv(rng, dtype, queries=4, keys=7)
    q[:, :, 1] = np.nan
    mask = np.ones((4, 7), bool)
    mask[1:3] = False
    out, indices = check_hard(q, k, v, attn_mask=mask)
    assert (indices[:, :, 1:3] == -1).all() and not out[:, :, 1:3].any()
    assert not np.signbit(out[:, :, 1:3].astype(F)).any()
    out, indices = check_hard(q, k, v, kv_lengths=[0, 7], attn_mask=mask)
    assert (indices[0] == -1).all() and not out[0].any()
    for keys in ({"bias": np.full(7, -np.inf)}, {"window": (0, 0), "q_offset": 50}):
        assert (check_hard(q, k, v, **keys)[1] == -1).all()


def test_nan_scores(backend, rng, dtype, sample):
    """NaN wins, the first one, in its own row; what a row cannot see never matters."""
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
        clean, clean_indices = check_hard(q, k, v)
        row, first, second = queries - 1, keys // 2, keys - 1
        q[0, 0, row, 2] = np.nan
        out, indices = check_hard(q, k, v)
        assert indices[0, 0, row] == 0
        k[1, 1, [first, second], 1] = np.nan
        out, indices = check_hard(q, k, v)
        assert (indices[1, 1] == first).all() and np.isnan(out[1, 1]).all()
        rest = np.ones(indices.shape, bool)
        rest[0, 0, row], rest[1, 1] = False, False
        assert_bits_equal(out[rest], clean[rest])
        assert_bits_equal(indices[rest], clean_indices[rest])
        options = {"is_causal": True, "q_offset": first - queries}
        check_hard(q, k, v, **options)
        bias = np.zeros((queries, keys), F)
        bias[row, first] = np.nan
        check_hard(q, k, v, bias=bias, kv_lengths=[keys, first])


def test_values_pass_untouched(backend, rng, dtype):
    """The chosen row bit by bit: NaN, infinities, -0; the rows not chosen may be anything."""
    q, k, v = whole_numbers(rng, QUERY_BLOCK + 1, KEY_TILE + 3, dtype)
    v[0, 0] = np.nan
    v[..., 0], v[1, 1, ::2, 1], v[1, 0, :, 2] = -0.0, np.inf, -np.inf
    out, indices = check_hard(q, k, v, score="dot")
    assert_bits_equal(out, take_rows(v, indices))
    assert np.signbit(out[..., 0].astype(F)).all()
    chosen = np.zeros(v.shape[:3], bool)
    np.put_along_axis(chosen, indices, True, axis=-1)
    v[~chosen] = np.nan
    assert_bits_equal(hard(q, k, v, score="dot"), out)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_hidden_data_may_be_anything(backend, rng, dtype, kind, sample):
    for queries, keys in some_shapes(sample, dtype):
        score, key_dim = some_score(rng, kind, dtype, 8, 5, keys)
        q, _, v = qkv(rng, dtype, queries=queries, keys=keys, dim=8)
        k = draw(rng, (2, 3, keys, key_dim), dtype)
        first = keys - 3
        forms = [
            {"kv_lengths": first},
            {"attn_mask": np.arange(keys) < first},
            {"window": (-1, 0), "q_offset": first - queries},
        ]
        wanted = [hard(q, k, v, score=score, return_indices=True, **form) for form in forms]
        for bad in (np.nan, np.inf):
            k[:, :, first:], v[:, :, first:] = bad, bad
            for form, want in zip(forms, wanted):
                got = hard(q, k, v, score=score, return_indices=True, **form)
                assert_bits_equal(got[0], want[0], f"{form} {bad}")
                assert_bits_equal(got[1], want[1], f"{form} {bad}")


def test_finite_minus_infinity_is_a_number(backend, rng, sample):
    """A key so biased is taken where there is no other, and never before another one."""
    for queries, keys in some_shapes(sample):
        q, k, v = qkv(rng, queries=queries, keys=keys)
        open_ = np.zeros((queries, keys), bool)
        open_[:, [keys // 2, keys - 2]] = True
        open_[0] = False
        for low in (np.finfo(F).min, -1e38, -1e9, -1e4, -1e300):
            bias = np.where(open_, 0.0, low)
            _, indices = check_hard(q, k, v, bias=bias, context=str(low))
            assert (indices[:, :, 0] >= 0).all()
            assert np.isin(indices[:, :, 1:], [keys // 2, keys - 2]).all()
            _, indices = check_hard(q, k, v, bias=bias, attn_mask=bias, context=str(low))
            assert np.isin(indices[:, :, 1:], [keys // 2, keys - 2]).all()
        _, indices = check_hard(q, k, v, bias=np.where(open_, 1e38, 0.0))
        assert np.isin(indices[:, :, 1:], [keys // 2, keys - 2]).all()


def test_products_of_minus_infinity_do_not_hide(backend):
    """Emptiness is decided by the masks, not by scores that overflow."""
    for queries, keys in SHAPES:
        q, k = np.full((1, 1, queries, 2), -1e25, F), np.full((1, 1, keys, 2), 1e20, F)
        v = np.ones((1, 1, keys, 2), F)
        assert not hard(q, k, v, return_indices=True)[1].any()


@pytest.mark.parametrize("sizes", [(1, 9), (5, KEY_TILE + 1), (1, KEY_CHUNK + 3)], ids=str)
def test_prepared_keys(backend, rng, dtype, sizes):
    """AdditiveKeys give what the keys give that they were made of."""
    queries, keys = sizes
    score, _ = some_score(rng, "additive", dtype, 4, 5, keys)
    q, _, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys)
    k = draw(rng, (2, 2, keys, 5), dtype)
    wanted = hard(q, k, v, score=score, return_indices=True)
    parameters = {"key_weight": score.key_weight, "hidden_bias": score.hidden_bias}
    prepared = fastattn.prepare_additive_keys(k, **parameters)
    short = fastattn.scores.Additive(score.attention_v, score.query_weight)
    got = hard(q, prepared, v, score=short, return_indices=True)
    assert_bits_equal(got[0], wanted[0])
    assert_bits_equal(got[1], wanted[1])
