# SPDX-License-Identifier: MIT
# int8 caches: what one row of one head becomes, and what that does to a result.
# Used by the suite, on every backend, for both kinds of cache.
# Results with every option are in test_int8.py and test_paged.py.
"""A row has a scale of its own; it is rounded to the nearest code, or NaN as a whole."""

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw, expected
from check_int8 import SIZES, as_dtype, draw_tokens, filled, stored

import fastattn

F = np.float32
LOOSE = 2.0**-20  # relative; float32 rounding in the quotient, the product, and attend


@pytest.fixture(params=["contiguous", "paged"])
def sequence(request):
    return lambda *tokens: filled(request.param, *tokens)


def tokens(rng, n, dtype=F, draw=draw_tokens):
    heads, dim, dv = SIZES
    return tuple(draw(rng, (n, heads, size), dtype) for size in (dim, dv))


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def given_dtype(request):
    return as_dtype(request.param)


def test_the_dtype_is_int8():
    for cache in (fastattn.KVCache(1, 2, 3, dtype="int8"), fastattn.KVCache(1, 2, 3, dtype="i1"),
                  fastattn.PagedKVCache(4, 3, 2, 3, dtype=np.int8)):  # fmt: skip
        assert cache.dtype is np.dtype("int8") and "dtype='int8'" in repr(cache)


def test_rows_are_codes_times_scales(backend, rng, sequence, given_dtype):
    """Each token of each head is rounded on its own, by the documented rule."""
    sizes = np.exp(rng.standard_normal((2, 11, 2, 1)) * 2).astype(F)
    given = [draw_tokens(rng, x.shape, given_dtype) for x in tokens(rng, 11)]
    given = [(x.astype(F) * s).astype(given_dtype) for x, s in zip(given, sizes)]
    for got, x in zip(sequence(*given).rows(11), given):
        far = abs(got - stored(x, np.int8))  # a tie that fell the other way is off by one step
        top = abs(x.astype(np.float64)).max(axis=-1, keepdims=True)
        assert (far <= top / 127 * 1.001).all()
        assert (far <= top * LOOSE + 1e-6).mean() > 0.95


def test_no_element_moves_by_more_than_half_a_step(backend, rng, sequence, given_dtype):
    """|x - stored x| <= max|x| / 254, for numbers of any kind: ties as well."""
    heads, dim, dv = SIZES
    ties = [rng.integers(-254, 255, (40, heads, size)) / 2 for size in (dim, dv)]
    for x in ties:
        x[..., 1] = 127
    skewed = [draw(rng, (40, heads, size)) ** 3 for size in (dim, dv)]
    for given in (ties, skewed, tokens(rng, 40, F, draw)):
        given = [np.asarray(x).astype(given_dtype) for x in given]
        for got, x in zip(sequence(*given).rows(40), given):
            x = x.astype(np.float64)
            top = abs(x).max(axis=-1, keepdims=True)
            assert (abs(got - x) <= top / 254 + top * LOOSE + 1e-6).all()


def test_rows_of_zeros_stay_zeros(backend, rng, sequence, given_dtype):
    """Exactly, among rows that are not."""
    key, value = tokens(rng, 6, given_dtype)
    key[2, 1], value[2, 1], value[4] = 0, 0, -0.0
    key[0], value[0] = 0, 0
    one = sequence(key, value)
    keys, values = one.rows(6)
    assert not values[2, 1].any() and not values[4].any() and not values[0].any()
    assert_close(keys[2, 1], np.zeros(5))
    assert values[2, 0].any() and keys[2, 0].any() and np.isfinite(keys).all()
    zeros = sequence(*(np.zeros_like(x) for x in (key, value)))
    out, lse = zeros.attend(draw(rng, (6, 4, 5)), return_lse=True)
    assert not out.any()
    assert_close(lse, np.broadcast_to(np.log(np.arange(1, 7)), (4, 6)))


def test_rows_of_whole_codes_are_exact(backend, rng, sequence):
    """Where the scale is a power of two, any integers up to 127 of it come back."""
    key, value = (rng.integers(-127, 128, x.shape).astype(F) for x in tokens(rng, 9))
    key[..., 3], value[..., 0] = -127, 127
    scales = (2.0 ** rng.integers(-9, 9, (2, 9, 2, 1))).astype(F)
    keys, values = sequence(key * scales[0], value * scales[1]).rows(9)
    assert_close(keys, (key * scales[0]).astype(np.float64))
    assert_close(values, (value * scales[1]).astype(np.float64))


@pytest.mark.parametrize("chunks", [[1] * 12, [5, 1, 6], [11, 1]], ids=str)
def test_chunks_do_not_matter(backend, rng, sequence, given_dtype, chunks):
    """A token has the same codes in whatever chunk it comes: the same bits."""
    key, value = tokens(rng, 12, given_dtype, draw)
    split, start = sequence(), 0
    for n in chunks:
        split.append(key[start : start + n], value[start : start + n])
        start += n
    query = draw(rng, (5, 4, 5))
    whole = sequence(key, value)
    for one, other in zip(split.attend(query, return_lse=True), whole.attend(query, return_lse=1)):
        assert_bits_equal(one, other)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_the_dtype_of_the_tokens_does_not_matter(backend, rng, sequence, half):
    """The same numbers have the same codes; a cache takes them in different dtypes."""
    given = tokens(rng, 12, as_dtype(half), draw)
    query = draw(rng, (5, 4, 5))
    wanted = sequence(*given).attend(query, return_lse=True)
    wide = [x.astype(F) for x in given]
    mixed = sequence(*(x[:7] for x in given))
    mixed.append(*(x[7:] for x in wide))
    for other in (sequence(*wide), mixed):
        for one, want in zip(other.attend(query, return_lse=True), wanted):
            assert_bits_equal(one, want)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("where", ["key", "value"])
def test_a_bad_number_spoils_its_row(backend, rng, sequence, given_dtype, where, number):
    """The row of that token and head is NaN as a whole: queries that see it are NaN, in all
    columns; the others have the bits that they have without it."""
    good = tokens(rng, 12, given_dtype)
    bad = [x.copy() for x in good]
    bad[where == "value"][5, 1, 3] = number
    query = draw(rng, (12, 4, 5))
    seen = np.zeros((12, 4), bool)
    for options, rows in (({}, slice(5, 12)), ({"window": (2, 0)}, slice(5, 8))):
        seen[...] = False
        seen[rows, 2:] = True  # the heads of the second group
        want, lse = sequence(*good).attend(query, return_lse=True, **options)
        got, got_lse = sequence(*bad).attend(query, return_lse=True, **options)
        assert (np.isnan(got) == seen[..., None]).all()
        assert (np.isnan(got_lse.T) == (seen if where == "key" else False)).all()
        if backend == "numpy":  # which computes all rows at once
            assert_close(got[~seen], want[~seen].astype(np.float64))
        else:
            assert_bits_equal(got[~seen], want[~seen])
            assert_bits_equal(got_lse.T[~seen], lse.T[~seen])


def test_bad_numbers_that_nobody_sees(backend, rng, sequence):
    """Hidden rows never show, whatever is in them."""
    key, value = tokens(rng, 12)
    query = draw(rng, (4, 4, 5))
    results = []
    for number in (0, np.nan, np.inf):
        key[:3], value[:3] = number, number
        one = sequence(key, value)
        results.append(one.attend(query, window=(5, None), return_lse=True))
        assert all(np.isfinite(x).all() for x in results[-1])
        for x, y in zip(results[-1], results[0]):
            assert_bits_equal(x, y)


@pytest.mark.parametrize("top", [1e-45, 1e-43, 1e-40, 1.2e-38, 1e-30, 1e30, 1e38, 3e38], ids=str)
def test_rows_of_any_size(backend, rng, sequence, top):
    """Subnormal numbers and those near the end of float32: finite, and half a step away."""
    value = (rng.uniform(-1, 1, (6, 2, 7)) * top).astype(F)
    value[..., 2] = top
    key = np.zeros((6, 2, 5), F)
    key[:, :, 0] = 1e-45
    one = sequence(key, value)
    out = one.attend(np.ones((6, 2, 5), F), window=0)  # each row sees its own value
    assert np.isfinite(out).all()
    error = abs(out.astype(np.float64) - value)
    most = abs(value).max(axis=-1, keepdims=True).astype(np.float64)
    scale_error = 127 * 2.0**-150  # half of the smallest float32, in each of 127 steps
    assert (error <= most / 254 * 1.0001 + scale_error + 2.0**-149).all()


@pytest.mark.parametrize("top", [300.0, 65504.0])
def test_large_float16_rows(backend, rng, sequence, top):
    """Case 20: products beyond float16 are none beyond float32."""
    key, value = tokens(rng, 9, np.float16)
    key[...], value[..., 0] = top, top
    out = sequence(key, value).attend(np.full((2, 4, 5), 10, np.float16))
    assert out.dtype == np.float16 and np.isfinite(out).all()
    mean = stored(value, np.int8)[:, :, 0].mean(axis=0)
    assert_close(out[1, :, 0], np.repeat(mean, 2))


@pytest.mark.parametrize("queries", [1, 9])
def test_the_error_of_a_result(backend, rng, sequence, queries):
    """Against attention of what was appended, without any rounding of it.

    A stored element is off by at most a_j = max|k_j| / 254 in a key j and b_j = max|v_j| / 254 in
    a value, so a score by |scale| sum_d |q_d| a_j (a softcap makes that no larger), at most t for
    all j. So lse moves by at most t, and a weight is multiplied by a number from exp(-2t) to
    exp(2t). The weights sum to 1 before and after, so with out = sum_j w_j v_j

        |out' - out| = |sum_j (w'_j - w_j)(v_j - out) + sum_j w'_j (v'_j - v_j)|
                    <= (exp(2t) - 1) sum_j w_j |v_j - out| + exp(2t) sum_j w_j b_j.
    """
    heads, dim, _ = SIZES
    key, value = tokens(rng, 40, F, draw)
    query = draw(rng, (queries, 2 * heads, dim))
    for options in ({}, {"window": (9, 0)}, {"softcap": 2.0, "scale": -0.4}, {"scale": 0.1}):
        out, lse = sequence(key, value).attend(query, return_lse=True, **options)
        causal = {"is_causal": True, "q_offset": "lower_right", "layout": "bshd"}
        want = expected(query, key, value, **causal, **options)
        a, b = (np.repeat(abs(x).max(axis=-1).astype(float) / 254, 2, axis=1) for x in (key, value))
        scale = abs(options.get("scale", 1 / np.sqrt(dim)))
        t = scale * abs(query.astype(float)).sum(axis=-1).T * a.max(axis=0)[:, None]  # (heads, q)
        assert (abs(lse - want.lse) <= t + 1e-5).all()
        v = np.repeat(value.astype(float), 2, axis=1).swapaxes(0, 1)  # (heads, keys, size)
        away = abs(v[:, None] - want.out.swapaxes(0, 1)[:, :, None])
        spread = np.einsum("hqk,hqkd->hqd", want.weights, away)
        steps = np.einsum("hqk,kh->hq", want.weights, b)[..., None]
        grown = np.exp(2 * t)[..., None]
        bound = (grown - 1) * spread + grown * steps + 1e-5
        assert (abs(out.swapaxes(0, 1) - want.out.swapaxes(0, 1)) <= bound).all()
        assert (abs(out - want.out) < 0.1).all()  # the bound itself is no wide net


def test_both_caches_hold_the_same(backend, rng):
    """The rule is one: contiguous and paged storage give the same numbers."""
    key, value = tokens(rng, 30, F, draw)
    one, other = (filled(kind, key, value).rows(30) for kind in ("contiguous", "paged"))
    for x, y in zip(one, other):
        assert_close(x, y.astype(np.float64))


def test_products_of_integers_do_not_overflow(backend):
    """Small keys and a large query: the integers times the query would leave the float range."""
    cache = fastattn.KVCache(1, 1, 1, dtype="int8")
    keys = np.array([1e-37, -1e-37, 2e-37], np.float32).reshape(1, 1, 3, 1)
    values = np.array([1, 2, 3], np.float32).reshape(1, 1, 3, 1)
    cache.append(keys, values)
    query = np.full((1, 1, 1, 1), 1e37, np.float32)
    weights = np.exp([1.0, -1.0, 2.0])
    expected = (weights * [1, 2, 3]).sum() / weights.sum()
    np.testing.assert_allclose(cache.attend(query, scale=1.0).item(), expected, rtol=1e-5)
