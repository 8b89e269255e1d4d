# SPDX-License-Identifier: MIT
# The expected values of hard, sampled and local attention.
# Used by test_hard*.py, test_local*.py and test_catalog.py; the scores are check_scores.py's.
# It never calls fastattn to find an expected value.
"""Which key a row takes, and what a row with a window of its own sees, in wide floats."""

from __future__ import annotations

import numpy as np
from cases import EXHAUSTIVE, KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import SCORE_ERROR, accumulator, assert_bits_equal, assert_close, attend, final_scores
from check_scores import wide_scores

import fastattn

# How near to a step of the cumulative probability a drawn number may go either way.
STEP = {"float32": 1e-5, "float64": 1e-9}
# (queries, keys): short, prefill over several tiles, decode over several chunks.
SHAPES = [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5), (3, 2 * KEY_CHUNK + 1)]


def some_shapes(sample, dtype=np.float32):
    """The short one and another for float32, any of them for the dtypes that take longer."""
    if dtype == np.float32 or EXHAUSTIVE:
        return [SHAPES[0], *sample(SHAPES[1:], 1)]
    return sample(SHAPES, 1)


def heads_first(array, layout):
    return array.swapaxes(-2, -3) if layout == "bshd" and array.ndim > 2 else array


def take_rows(value, indices, layout="bhsd"):
    """value[index] of each row, zeros for -1, in the layout; `indices` is (..., Hq, Sq)."""
    v = heads_first(value, layout)
    v = v.astype(v.dtype.newbyteorder("="))
    if v.ndim == 2:
        return np.where((indices < 0)[:, None], v.dtype.type(0), v[indices])
    if v.shape[-3]:
        v = np.repeat(v, indices.shape[-2] // v.shape[-3], axis=-3)
    v = np.broadcast_to(v, (*indices.shape[:-1], *v.shape[-2:]))
    if v.shape[-2] == 0:
        v = np.zeros((*v.shape[:-2], 1, v.shape[-1]), v.dtype)
    taken = np.take_along_axis(v, np.maximum(indices, 0)[..., None], axis=-2)
    taken = np.where((indices < 0)[..., None], v.dtype.type(0), taken)
    return heads_first(taken, layout)


def _scores(query, key, value, score, softcap, options):
    return final_scores(wide_scores(score, query.dtype, softcap), query, key, value, **options)


def _slack(s, dtype):
    return SCORE_ERROR[accumulator(dtype).name] * s.size


def _check_fixed(s, indices, context):
    """Rows that see nothing or a NaN have only one answer; the others are returned."""
    empty = ~s.allowed.any(axis=-1)
    assert (indices[empty] == -1).all(), f"an empty row has a key {context}"
    bad = np.isnan(s.total) & s.allowed
    is_bad = bad.any(axis=-1)
    if is_bad.any():
        first = bad.argmax(axis=-1)
        assert (indices[is_bad] == first[is_bad]).all(), f"not the first NaN {context}"
    rest = ~(empty | is_bad)
    assert (indices[rest] >= 0).all(), f"a row that sees keys has none {context}"
    if rest.any():
        at = np.maximum(indices, 0)[..., None]
        seen = np.take_along_axis(s.allowed, at, axis=-1)[..., 0]
        assert seen[rest].all(), f"a hidden key was taken {context}"
    return rest, is_bad


def assert_largest(s, indices, dtype, context=""):
    """Every row has a key whose score may be the largest, given the rounding of scores."""
    rest, is_bad = _check_fixed(s, indices, context)
    if rest.any():
        total, slack = s.total[rest], _slack(s, dtype)[rest]
        at = indices[rest][:, None]
        own = np.take_along_axis(total + slack, at, axis=-1)[:, 0]
        assert (own >= (total - slack).max(axis=-1)).all(), f"not the largest score {context}"
    return is_bad


def assert_drawn(s, indices, numbers, dtype, context=""):
    """Every row has the key into whose part of the cumulative probability its number falls."""
    rest, is_bad = _check_fixed(s, indices, context)
    if rest.any():
        total = s.total[rest]
        w = np.exp(total - total.max(axis=-1, keepdims=True))
        w /= w.sum(axis=-1, keepdims=True)
        slack = _slack(s, dtype)[rest]
        slack = (w * (slack + (w * slack).sum(axis=-1, keepdims=True))).sum(axis=-1)
        slack += STEP[accumulator(dtype).name]
        at = indices[rest][:, None]
        upto = np.take_along_axis(w.cumsum(axis=-1), at, axis=-1)[:, 0]
        before = upto - np.take_along_axis(w, at, axis=-1)[:, 0]
        number = numbers[rest]
        wrong = (upto <= number - slack) | (before > number + slack)
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size} rows drew another key {context}"
    return is_bad


def check_hard(query, key, value, *, keys=None, score="scaled_dot", softcap=0.0, seed=None,
               context="", **options):  # fmt: skip
    """Call hard_attention into a poisoned `out`, compare all; return (out, indices).

    With a `seed` the call draws its keys. `keys`, if given, are passed instead of key.
    """
    s = _scores(query, key, value, score, softcap, options)
    layout = options.get("layout", "bhsd")
    rows = s.total.shape[:3]
    n_heads, n_queries = rows[1:]
    shape = (n_queries,) if query.ndim == 2 else (*s.lead, n_heads, n_queries)
    poisoned = np.full((*shape, value.shape[-1]), np.nan, query.dtype.newbyteorder("="))
    out = np.ascontiguousarray(heads_first(poisoned, layout))
    sample = None if seed is None else np.random.default_rng(seed)
    got, indices = fastattn.hard_attention(
        query, key if keys is None else keys, value, score=score, softcap=softcap, out=out,
        sample=sample, return_indices=True, **options,
    )  # fmt: skip
    assert got is out
    assert indices.dtype == np.int64 and indices.shape == shape, (indices.dtype, indices.shape)
    if seed is None:
        is_bad = assert_largest(s, indices.reshape(rows), query.dtype, context)
    else:
        twin = np.random.default_rng(seed)
        numbers = twin.random(rows)
        assert sample.bit_generator.state == twin.bit_generator.state, "numbers drawn"
        is_bad = assert_drawn(s, indices.reshape(rows), numbers, query.dtype, context)
    rows_out, is_bad = heads_first(out, layout), is_bad.reshape(shape)
    assert np.isnan(rows_out[is_bad]).all(), f"a NaN score was swallowed {context}"
    wanted = heads_first(take_rows(value, indices, layout), layout)
    assert_bits_equal(rows_out[~is_bad], wanted[~is_bad], context)
    return out, indices


def _wide(numbers):
    """Exactly, also of large integers: long double holds every float64 and every int64."""
    array = np.asarray(numbers)
    return array.astype(np.longdouble) if array.dtype.kind in "iuf" else array.astype(np.float64)


def expected_local(query, key, value, *, centers, half_width, sigma=None, score="scaled_dot",
                   softcap=0.0, attn_mask=None, **options):  # fmt: skip
    """(results, final weights, their slack, out, its slack, its size) in wide floats."""
    layout = options.get("layout", "bhsd")
    q, k, v = (heads_first(x, layout) for x in (query, key, value))
    lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    shape = q.shape[-2:-1] if q.ndim == 2 else (*lead, *q.shape[-3:-1])
    center = np.broadcast_to(_wide(centers), shape)[..., None]
    keys, width = np.arange(k.shape[-2]), _wide(half_width)
    away, near = keys - center, (center - width <= keys) & (keys <= center + width)
    if attn_mask is None:
        mask = near
    else:
        mask = np.asarray(attn_mask)
        is_bool = mask.dtype == np.bool_
        mask = near & mask if is_bool else np.where(near, mask.astype(np.float64), -np.inf)
    function = wide_scores(score, query.dtype, softcap)
    want = attend(function, query, key, value, mask, **options)
    if sigma is None:
        return want, want.weights, want.weights_slack, want.out, want.out_slack, want.size

    with np.errstate(all="ignore"):
        exponent = np.where(near, (away / _wide(sigma)) ** 2 / 2, 0)
        exponent = exponent.astype(want.weights.dtype)
        fade = np.where(near, np.exp(-exponent), 0)
        weights = np.where(near, want.weights * fade, 0)
        rounding = SCORE_ERROR[accumulator(query.dtype).name] * (1 + exponent) * abs(weights)
        slack = np.where(near, want.weights_slack * fade, 0) + np.where(fade > 0, rounding, 0)
        options.pop("sinks", None)
        s = final_scores(function, query, key, value, mask, **options)
        wide = s.value.reshape((*s.lead, *s.value.shape[1:]))
        wide = wide[0] if query.ndim == 2 else wide
        plain = np.where(np.isfinite(wide), wide, 0)
        seen = s.allowed.reshape(weights.shape).astype(float)
        out = weights @ plain
        for bad in (np.nan, np.inf, -np.inf):
            where = np.isnan(wide) if np.isnan(bad) else wide == bad
            if where.any():
                out = out + np.where(seen @ where.astype(float) > 0, bad, 0)
        out_slack, size = slack @ abs(plain), weights @ abs(plain)
    return want, weights, slack, *(heads_first(x, layout) for x in (out, out_slack, size))


def check_local(query, key, value, *, keys=None, context="", **options):
    """Call local_attention into a poisoned `out`, compare out, lse and weights; return out."""
    want, weights, slack, wanted_out, out_slack, size = expected_local(query, key, value, **options)
    out = np.full(wanted_out.shape, np.nan, query.dtype.newbyteorder("="))
    got = fastattn.local_attention(
        query, key if keys is None else keys, value, out=out, return_lse=True,
        return_weights=True, **options,
    )  # fmt: skip
    assert got[0] is out
    assert got[1].dtype == accumulator(query.dtype) and got[2].dtype == out.dtype
    assert_close(out, wanted_out, slack=out_slack, size=size, context=f"out {context}")
    assert_close(got[1], want.lse, slack=want.lse_slack, context=f"lse {context}")
    slack = np.where(want.weights == 0, 0, slack)
    assert_close(got[2], weights, slack=slack, context=f"weights {context}")
    assert not got[2][want.weights == 0].any(), f"a hidden key has weight {context}"
    return out
