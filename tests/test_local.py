# SPDX-License-Identifier: MIT
# Local attention: windows around centers, the Gaussian, every score and option.
# Used by the suite, on every backend.
# Layouts, out=, errors, determinism and memory are in test_local_arrays.py.
"""A row sees the keys within half_width of its own center, and sigma fades what it sees."""

import itertools

import numpy as np
import pytest
from cases import DECODE_TILE, KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, draw, qkv
from check_scores import ALL_KINDS, KINDS, some_score
from check_selection import check_local, some_shapes

import fastattn

local = fastattn.local_attention
F = np.float32


def test_by_hand(backend, dtype):
    """Equal scores: the mean of what is in the window, and what the Gaussian leaves of it."""
    q, k = np.zeros((4, 2), dtype), np.zeros((6, 2), dtype)
    v = np.array([[0], [1], [2], [4], [8], [16]], dtype)
    given = {"centers": [0, 2.0, 4.5, 9], "half_width": 1.5}
    out, lse = local(q, k, v, return_lse=True, **given)
    assert_close(out.ravel(), np.array([0.5, 7 / 3, 28 / 3, 0]))
    assert_close(lse, np.array([np.log(2), np.log(3), np.log(3), -np.inf]))
    near = np.exp(-0.5)
    out, weights = local(q, k, v, sigma=1.0, return_weights=True, **given)
    assert_close(weights[0], np.array([1 / 2, near / 2, 0, 0, 0, 0]))
    assert_close(weights[1], np.array([0, near / 3, 1 / 3, near / 3, 0, 0]))
    assert_close(out[2], np.array([4 * np.exp(-9 / 8) + 24 * np.exp(-1 / 8)]) / 3)
    assert not out[3].any() and not weights[3].any()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_score(backend, rng, dtype, kind, sample):
    """Local-m and local-p, with grouped heads and other options; see the catalog."""
    for queries, keys in some_shapes(sample, dtype):
        score, key_dim = some_score(rng, kind, dtype, 8, 5, keys)
        q, _, v = qkv(rng, dtype, heads=2, kv_heads=1, queries=queries, keys=keys, dim=8)
        k = draw(rng, (2, 1, keys, key_dim), dtype)
        monotonic = {"centers": np.arange(queries), "half_width": 3}
        predicted = {"centers": keys * rng.random((2, 2, queries)), "half_width": 4, "sigma": 2}
        check_local(q, k, v, score=score, **monotonic)
        check_local(q, k, v, score=score, **predicted)
        others = {"attn_mask": rng.random((queries, keys)) < 0.7, "sinks": draw(rng, 2)}
        check_local(q, k, v, score=score, **predicted, **others)


@pytest.mark.parametrize("sigma", [None, 2.5])
def test_every_option(backend, rng, dtype, sigma, sample):
    """The window is one mask more; what a row sees is the intersection."""
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys)
        given = {
            "centers": keys * rng.random((2, 4, queries)),
            "half_width": keys / 3,
            "sigma": sigma,
        }
        several = [
            {"is_causal": True, "q_offset": "lower_right"},
            {"kv_lengths": [keys // 2, 0], "bias": draw(rng, (4, 1, keys))},
            {"attn_mask": np.where(rng.random((2, 1, queries, keys)) < 0.7, 0.5, -np.inf)},
            {"window": (2, keys // 2), "q_offset": [1, keys // 3], "alibi_slopes": draw(rng, 4)},
            {"softcap": 0.7, "sinks": np.array([0.0, -np.inf, 2.0, 1.0])},
            {"attn_mask": rng.random(keys) < 0.5, "is_causal": True, "kv_lengths": [keys, 3]},
        ]
        for options in sample(several, 3):
            check_local(q, k, v, context=str(list(options)), **given, **options)


@pytest.mark.parametrize("shape", [(7, 12), (QUERY_BLOCK + 1, KEY_TILE + 9), (2, KEY_CHUNK + 9)])
def test_each_row_sees_exactly_its_window(backend, rng, shape):
    """Edges that lie on a key belong to the window, at the ends and where tiles end."""
    queries, keys = shape
    q, k, v = qkv(rng, lead=(), heads=1, queries=queries, keys=keys, dim=4, dv=3)
    j = np.arange(keys)
    edges = [0, 1, keys - 1, keys // 2, DECODE_TILE, KEY_TILE, KEY_CHUNK]
    edges = np.array([e for e in edges if e < keys])
    for half_width, shift in itertools.product((0, 0.5, 1, 2.5, 16, 40.25, keys), (0, 0.5, 0.25)):
        for near in (-half_width, half_width):  # the last or the first key of the window
            centers = np.resize(rng.permutation(edges), queries) + near + shift
            given = {"centers": centers, "half_width": half_width}
            weights = local(q, k, v, return_weights=True, **given)[1][0]
            wanted = (centers[:, None] - half_width <= j) & (j <= centers[:, None] + half_width)
            assert ((weights != 0) == wanted).all(), (half_width, shift, near)


def test_centers_are_not_rounded(backend):
    """float64 centers of float32 arrays: a part of a billionth decides about a key."""
    q, k, v = np.zeros((4, 2), F), np.zeros((12, 2), F), np.ones((12, 2), F)
    tiny = 2.0**-30
    centers = np.array([8 + tiny, 8 - tiny, 8, 7.5 + tiny])
    for half_width, wanted in (
        (1, [[8, 9], [7, 8], [7, 8, 9], [7, 8]]),
        (1 + tiny, [[7, 8, 9], [7, 8, 9], [7, 8, 9], [7, 8]]),
        (1 - tiny, [[8, 9], [7, 8], [8], [7, 8]]),
        (0.5, [[8], [8], [8], [8]]),
        (0.5 - tiny, [[8], [8], [8], [8]]),
        (0, [[], [], [8], []]),
    ):
        given = {"centers": centers, "half_width": half_width}
        weights = local(q, k, v, return_weights=True, **given)[1]
        assert [np.flatnonzero(w).tolist() for w in weights] == wanted, half_width


def test_far_centers(backend, rng, dtype):
    """Outside of the sequence: nothing is seen, however far; huge widths see everything."""
    q, k, v = qkv(rng, dtype, queries=6, keys=9)
    for sigma in (None, 1.0):
        centers = [-3.5, -1e300, 1e300, 2.0**63, 11.5, -(2.0**40)]
        given = {"centers": centers, "half_width": 2.5, "sigma": sigma}
        out, lse, weights = local(q, k, v, return_lse=True, return_weights=True, **given)
        assert not out.any() and not weights.any() and np.isneginf(lse).all()
        check_local(q, k, v, **given, sinks=draw(rng, 3))
    for width in (1e300, 1e18, 2**40, np.finfo(float).max):
        check_local(q, k, v, centers=[0, 4, 8, -100, 100, 1.5], half_width=width)
    check_local(q, k, v, centers=[1e300, 9, -1e300, 0, 1, 2], half_width=1e300)
    check_local(q, k, v, centers=np.array([2**62, -(2**62), 0, 3, 9, 10]), half_width=1)


def test_extreme_sigmas(backend, rng, dtype, sample):
    """Weights fade to 0 without NaN, and a key at the center keeps its weight."""
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
        centers = np.floor(keys * rng.random((2, 3, queries)))
        for sigma in (1e-300, 5e-324, *sample([1e-20, 1e-3, 0.3, 7, 1e20, 1e300], 2)):
            given = {"centers": centers, "half_width": rng.choice([3, keys]), "sigma": sigma}
            check_local(q, k, v, context=str(given["half_width"]), **given)
        check_local(q, k, v, centers=centers + 0.5, half_width=3, sigma=1e-3)


def test_distances_of_far_keys_of_a_tile(backend, rng):
    """A narrow Gaussian in a wide window: distances are exact wherever the key's tile begins."""
    for queries in (2, QUERY_BLOCK + 1):
        q, k = np.zeros((queries, 4), F), np.zeros((KEY_TILE, 4), F)
        centers = 30 + (KEY_TILE - 60) * rng.random(queries)
        away = np.arange(KEY_TILE) - centers[:, None]
        for sigma in (0.1, 0.3):
            given = {"centers": centers, "half_width": KEY_TILE, "sigma": sigma}
            weights = local(q, k, k, return_weights=True, **given)[1].astype(np.float64)
            near = abs(away) < 4 * sigma
            wanted = np.exp(-((away[near] / sigma) ** 2) / 2) / KEY_TILE
            assert (abs(weights[near] - wanted) < 4e-6 * wanted).all()


@pytest.mark.parametrize("queries", [3, QUERY_BLOCK + 1])
def test_gaussians_beyond_squares_of_floats(backend, dtype, queries):
    """Center and sigma so far out, or so small, that (j - c)^2 leaves the range of float32."""
    q, v = np.zeros((1, queries, 4), dtype), np.ones((1, 5, 1), dtype)
    k = np.zeros((1, 5, 4), dtype)
    cases = [(1e300, 1e300), (1e25, 1e25), (1e20, 1e22), (-1e19, 1e19), (1e150, 3e150)]
    cases += [(1e-20, 1e-20), (1e-30, 1e-30), (0.0, 1e-30), (2.5, 1e-200), (1.0, 1e300)]
    for center, sigma in cases:
        given = {"centers": center, "half_width": max(5.0, 2 * abs(center)), "sigma": sigma}
        weights = local(q, k, v, return_weights=True, **given)[1][0]
        with np.errstate(over="ignore"):
            wanted = np.exp(-(((np.arange(5) - center) / sigma) ** 2) / 2) / 5
        assert_close(weights[0], wanted, context=str(given))
        assert_bits_equal(weights, np.broadcast_to(weights[0], weights.shape))


@pytest.mark.parametrize("queries", [3, QUERY_BLOCK + 1])
def test_weights_are_never_subnormal(backend, rng, queries):
    """Small weights times small Gaussians: the processor takes ten times as long for those."""
    q, k, v = qkv(rng, queries=queries, keys=3 * KEY_TILE, dim=64)
    given = {"centers": np.arange(queries), "half_width": 3 * KEY_TILE, "sigma": KEY_TILE / 5}
    weights = local(q * F(8), k, v, return_weights=True, **given)[1]
    if backend != "numpy":  # which leaves it to NumPy
        assert not ((weights > 0) & (weights < np.finfo(F).tiny)).any()
    check_local(q * F(8), k, v, **given)


def test_no_second_normalisation(backend, rng, dtype):
    """Weights are those without sigma times the Gaussian; lse does not know of it."""
    q, k, v = qkv(rng, dtype, queries=6, keys=20)
    given = {"centers": 20 * rng.random(6), "half_width": 4.0}
    plain = local(q, k, v, return_lse=True, return_weights=True, **given)
    faded = local(q, k, v, return_lse=True, return_weights=True, sigma=2.0, **given)
    assert_close(faded[1], plain[1].astype(np.float64))
    away = np.arange(20) - given["centers"][:, None]
    assert_close(faded[2], plain[2].astype(np.float64) * np.exp(-(away**2) / 8))
    assert (faded[2].astype(np.float64).sum(axis=-1) < 0.999).all()


@pytest.mark.parametrize("sigma", [None, 8.0])
@pytest.mark.parametrize("queries", [1, 24])
def test_scattered_rows_of_a_long_sequence(backend, rng, queries, sigma):
    """Windows anywhere, in no order, over many tiles and splits of the keys."""
    q, k, v = qkv(rng, lead=(1,), heads=2, kv_heads=1, queries=queries, keys=9000, dim=8, dv=5)
    centers = 9100 * rng.random((1, 2, queries)) - 50
    check_local(q, k, v, centers=centers, half_width=16, sigma=sigma)
    check_local(q, k, v, centers=centers[:, :1], half_width=700.5, sigma=sigma)
    check_local(q, k, v, centers=centers, half_width=5000, sigma=sigma, kv_lengths=8500)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_what_is_outside_may_be_anything(backend, rng, dtype, kind, sample):
    """NaN and infinities outside of all windows: the bits of zeros there."""
    for queries, keys in some_shapes(sample, dtype):
        score, key_dim = some_score(rng, kind, dtype, 8, 5, keys)
        q, _, v = qkv(rng, dtype, queries=queries, keys=keys, dim=8)
        k = draw(rng, (2, 3, keys, key_dim), dtype)
        centers = rng.uniform(keys // 3 + 1, keys // 3 + 3, (3, queries))
        given = {"score": score, "centers": centers, "half_width": 1, "sigma": 0.5}
        given |= {"return_lse": True, "return_weights": True}
        outside = (np.arange(keys) < keys // 3) | (np.arange(keys) > keys // 3 + 4)
        k[:, :, outside], v[:, :, outside] = 0, 0
        wanted = local(q, k, v, **given)
        for bad in (np.nan, np.inf, -np.inf):
            k[:, :, outside], v[:, :, outside] = bad, bad
            for one, other in zip(local(q, k, v, **given), wanted):
                assert_bits_equal(one, other, str(bad))


def test_nan_in_the_window_of_some_rows(backend, rng, dtype, sample):
    """A visible NaN makes its rows NaN (a value: its column of them), and no others."""
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
        centers = keys * rng.random(queries)
        centers[0] = keys // 2
        given = {"centers": centers, "half_width": 3, "sigma": 1.5}
        clean = local(q, k, v, **given)
        at = keys // 2
        sees = abs(centers - at) <= 3
        k[0, 1, at, 0] = v[1, 2, at, 4] = np.nan
        out = check_local(q, k, v, **given)
        wanted = np.zeros(out.shape, bool)
        wanted[0, 1, sees], wanted[1, 2, sees, 4] = True, True
        assert_bits_equal(np.isnan(out), wanted)
        rows = wanted.any(axis=-1)
        if backend != "numpy" and dtype == F:
            assert_bits_equal(out[~rows], clean[~rows])
        q[0, 0, 0] = np.nan
        assert np.isnan(check_local(q, k, v, **given)[0, 0, 0]).all()


def test_options_of_additive_scores(backend, rng, dtype):
    """Case 103: a key outside of the window with a huge score takes no weight."""
    score = fastattn.scores.Additive(None)
    q, k = np.zeros((1, 1, 2, 300), dtype), np.full((1, 1, 9, 300), -0.345, dtype)
    v = np.full((1, 1, 9, 4), 3.0, dtype)
    k[:, :, 5:], v[:, :, 5:] = 0.345, 6e4
    for given in ({"centers": 2, "half_width": 2}, {"centers": [0.5, 3], "half_width": 1.5}):
        out, weights = local(q, k, v, score=score, return_weights=True, **given)
        assert_close(out, np.full(out.shape, 3.0))
        assert not weights[..., 5:].any()
    if dtype != F:
        return
    for kind in set(ALL_KINDS) - set(KINDS):
        score, key_dim = some_score(rng, kind, dtype, 4, 4, 9)
        for name, wrong in (("softcap", 2.0), ("alibi_slopes", np.ones(1))):
            with pytest.raises(ValueError, match=f"^{name}"):
                local(q[..., :4], k[..., :4], v, score=score, **given, **{name: wrong})


@pytest.mark.parametrize("sizes", [(1, 9), (5, KEY_TILE + 1), (1, KEY_CHUNK + 3)], ids=str)
def test_prepared_keys(backend, rng, dtype, sizes):
    """AdditiveKeys give what the keys give that they were made of."""
    queries, keys = sizes
    score, _ = some_score(rng, "additive", dtype, 4, 5, keys)
    q, _, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys)
    k = draw(rng, (2, 2, keys, 5), dtype)
    given = {"centers": keys * rng.random((4, queries)), "half_width": 5, "sigma": 3}
    wanted = check_local(q, k, v, score=score, **given)
    parameters = {"key_weight": score.key_weight, "hidden_bias": score.hidden_bias}
    prepared = fastattn.prepare_additive_keys(k, **parameters)
    short = fastattn.scores.Additive(score.attention_v, score.query_weight)
    assert_bits_equal(local(q, prepared, v, score=short, **given), wanted)
