# SPDX-License-Identifier: MIT
# The expected values and the one tolerance rule of the whole test suite.
# Used by every test file; tested itself in test_check.py.
# It never calls fastattn to find an expected value, and it never relaxes a tolerance per backend.
"""An independent attention in wide floats, and comparisons that do not forgive NaN.

`expected` follows the formula term by term with a two-pass softmax: float64 for float16, bfloat16
and float32 inputs, long double for float64 inputs. Beside each result it returns a *slack*: how far
the result may move when every score is off by its own rounding error (first order, per element).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import fastattn

# dtype name -> (relative, absolute) tolerance against the wide result.
TOLERANCE = {
    "float64": (1e-12, 1e-12),
    "float32": (2e-5, 2e-6),
    "float16": (2e-3, 2e-3),
    "bfloat16": (2e-2, 2e-2),
}
# A score of size s carries an error of about s times this: four units in the last place.
SCORE_ERROR = {"float32": 2.0**-22, "float64": 2.0**-51}


@dataclass
class Expected:
    """The wide results; `*_slack` are absolute allowances, `size` is sum_j w_j |v_j|."""

    out: np.ndarray
    lse: np.ndarray
    weights: np.ndarray
    size: np.ndarray
    out_slack: np.ndarray
    lse_slack: np.ndarray
    weights_slack: np.ndarray
    dtype: str


def accumulator(dtype):
    """The dtype of scores and of lse for inputs of this dtype."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def draw(rng, shape, dtype=np.float32, size=1.0):
    """Normal numbers, rounded to `dtype`."""
    return (rng.standard_normal(shape) * size).astype(dtype)


def qkv(
    rng, dtype=np.float32, *, lead=(2,), heads=3, kv_heads=None, queries=5, keys=7, dim=4, dv=6
):
    """Random query, key, value; by default no two sizes are equal."""
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        draw(rng, (*lead, heads, queries, dim), dtype),
        draw(rng, (*lead, kv_heads, keys, dim), dtype),
        draw(rng, (*lead, kv_heads, keys, dv), dtype),
    )


def _heads_first(array, layout):
    if array.ndim == 2:
        return array[None]
    return array.swapaxes(-2, -3) if layout == "bshd" else array


def _per_entry(numbers, lead, count):
    return np.broadcast_to(np.asarray(numbers, np.int64), lead).reshape(count)


def _float_term(term, shape, wide, limit):
    """A float term as wide numbers of shape (N, H, Sq, Sk), and where it is -inf."""
    term = np.asarray(term)
    term = term.astype(np.float64) if term.dtype != np.longdouble else term
    term = np.broadcast_to(term.astype(wide), shape)
    return np.where(np.isinf(term), term, np.clip(term, -limit, limit)), np.isneginf(term)


def expected(query, key, value, attn_mask=None, *, scale=None, softcap=0.0, **options):
    """All results of scaled_dot_product_attention in wide floats."""

    def dot(q, k, wide):
        factor = wide(1) / np.sqrt(wide(q.shape[-1])) if scale is None else wide(float(scale))
        s = factor * (q @ k.swapaxes(-1, -2))
        size = abs(factor) * (abs(q) @ abs(k).swapaxes(-1, -2))
        if softcap:
            bent = np.tanh(s / softcap)
            s, size = softcap * bent, size * (1 - bent**2) + softcap * abs(bent)
        return s, size

    return attend(dot, query, key, value, attn_mask, **options)


@dataclass
class Scores:
    """The final scores of all rows: what remains of a call before its softmax."""

    total: np.ndarray  # (N, H, Sq, Sk); what a row may not see is -inf
    size: np.ndarray  # its SCORE_ERROR part is the error that a score may have
    allowed: np.ndarray
    value: np.ndarray  # (N, H, Sk, Dv), wide
    lead: tuple  # the leading axes, whose product is N


def final_scores(score, query, key, value, attn_mask=None, *, bias=None, is_causal=False,
                 q_offset=0, kv_lengths=None, window=None, alibi_slopes=None,
                 layout="bhsd"):  # fmt: skip
    """Everything up to the softmax. `score` makes (N, H, Sq, Sk) of a query and a key
    (N, H, S, dim), and sizes: numbers whose SCORE_ERROR part is the error that each may have."""
    name = np.dtype(query.dtype).name
    wide = np.longdouble if name == "float64" else np.float64
    limit = wide(np.finfo(accumulator(query.dtype)).max)

    q, k, v = (_heads_first(x, layout) for x in (query, key, value))
    lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    n = int(np.prod(lead, dtype=int))
    q, k, v = (
        np.broadcast_to(x, lead + x.shape[-3:]).astype(wide).reshape((n, *x.shape[-3:]))
        for x in (q, k, v)
    )
    heads, n_queries = q.shape[1:3]
    n_keys, dv = v.shape[2:]
    group = heads // k.shape[1] if k.shape[1] else 1
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    shape = (n, heads, n_queries, n_keys)
    full = (*lead, heads, n_queries, n_keys)

    with np.errstate(all="ignore"):
        s, size = score(q, k, wide)
        length = _per_entry(n_keys if kv_lengths is None else kv_lengths, lead, n)
        if isinstance(q_offset, str):
            offset = length - n_queries
        else:
            offset = _per_entry(q_offset, lead, n)
        j = np.arange(n_keys)
        p = (np.arange(n_queries) + np.clip(offset, -(2**60), 2**60)[:, None])[:, None, :, None]

        allowed = np.broadcast_to(j < length[:, None, None, None], shape).copy()
        if is_causal:
            allowed &= j <= p
        if window is not None:
            left, right = (window, window) if np.ndim(window) == 0 else window
            if left is not None and left != -1:
                allowed &= j >= p - left
            if right is not None and right != -1:
                allowed &= j <= p + right
        terms = np.zeros(shape, wide)
        for term in (bias, attn_mask):
            if term is None:
                continue
            term = np.asarray(term)
            if term.dtype == np.bool_:
                allowed &= np.broadcast_to(term, full).reshape(shape)
                continue
            term, hidden = _float_term(term, full, wide, limit)
            allowed &= ~hidden.reshape(shape)
            terms = terms + term.reshape(shape)
            size = size + abs(term.reshape(shape))
        if alibi_slopes is not None:
            slopes = np.asarray(alibi_slopes).astype(wide)
            slopes = np.broadcast_to(slopes, (*lead, heads)).reshape(n, heads, 1, 1)
            fall = np.clip(slopes * abs(p - j).astype(wide), -limit, limit)
            terms = terms - fall
            size = size + abs(fall)
        total = s + terms
        total = np.where(np.isfinite(s) & np.isfinite(terms), np.clip(total, -limit, limit), total)

        total = np.where(allowed, total, -np.inf)
        size = np.where(allowed, size, 0)
    return Scores(total, size, allowed, v, lead)


def attend(score, query, key, value, attn_mask=None, *, sinks=None, layout="bhsd", **options):
    """All results of the call whose scores `score` makes (see final_scores)."""
    name = np.dtype(query.dtype).name
    rank = query.ndim
    unit = SCORE_ERROR[accumulator(query.dtype).name]
    s = final_scores(score, query, key, value, attn_mask, layout=layout, **options)
    total, size, allowed, v, lead = s.total, s.size, s.allowed, s.value, s.lead
    wide, limit = total.dtype.type, total.dtype.type(np.finfo(accumulator(query.dtype)).max)
    n, heads, n_queries, n_keys = total.shape
    dv = v.shape[-1]

    with np.errstate(all="ignore"):
        top = np.full((n, heads, n_queries, 1), -np.inf, wide)
        if n_keys:
            top = total.max(axis=-1, keepdims=True)
        sink = np.full((1, heads, 1, 1), -np.inf, wide)
        if sinks is not None:
            sink = np.clip(np.asarray(sinks).astype(wide), -np.inf, limit).reshape(1, heads, 1, 1)
            top = np.maximum(top, sink)
        base = np.where(np.isneginf(top), 0, top)
        e = np.where(allowed, np.exp(total - base), 0)
        e_sink = np.exp(sink - base)
        z = e.sum(axis=-1, keepdims=True) + e_sink
        lse = np.where(z == 0, -np.inf, np.log(np.where(z == 0, 1, z)) + base)
        w = np.where(allowed, e / np.where(z == 0, 1, z), 0)
        w_sink = np.where(np.isneginf(sink), 0, e_sink / np.where(z == 0, 1, z) * abs(sink))

        plain = np.where(np.isfinite(v), v, 0)
        out = w @ plain
        for bad, is_bad in ((np.nan, np.isnan(v)), (np.inf, v == np.inf), (-np.inf, v == -np.inf)):
            if is_bad.any():
                out = out + np.where(allowed.astype(float) @ is_bad.astype(float) > 0, bad, 0)
        spread = (w * size).sum(axis=-1, keepdims=True) + np.where(np.isfinite(w_sink), w_sink, 0)
        out_slack = unit * ((w * size) @ abs(plain) + abs(out) * spread)
        weights_slack = unit * w * (size + spread)
        volume = w @ abs(plain)

    def as_out(array):
        array = array.reshape((*lead, heads, n_queries, dv))
        if rank == 2:
            return array[0]
        return array.swapaxes(-2, -3) if layout == "bshd" else array

    def as_rows(array, *tail):
        array = array.reshape((*lead, heads, n_queries, *tail))
        return array[0] if rank == 2 else array

    return Expected(
        as_out(out), as_rows(lse), as_rows(w, n_keys), as_out(volume), as_out(out_slack),
        as_rows(unit * spread), as_rows(weights_slack, n_keys), name,
    )  # fmt: skip


def assert_close(actual, wanted, *, dtype=None, slack=0.0, size=1.0, context=""):
    """Equal within the tolerance of `dtype` (default: that of `actual`); NaN equals only NaN."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.shape == wanted.shape, f"shape {actual.shape}, wanted {wanted.shape} {context}"
    relative, absolute = TOLERANCE[np.dtype(actual.dtype if dtype is None else dtype).name]
    got = actual.astype(np.longdouble if actual.dtype == np.float64 else np.float64)
    with np.errstate(all="ignore"):
        limit = relative * abs(wanted) + absolute * np.maximum(1.0, size) + slack
        good = abs(got - wanted) <= limit
        # An infinite limit must not let anything pass for a finite number.
        good &= np.isfinite(got) & np.isfinite(wanted)
        good |= (np.isnan(got) & np.isnan(wanted)) | (np.isinf(wanted) & (got == wanted))
    if not good.all():
        where = tuple(int(x) for x in np.argwhere(~good)[0])
        raise AssertionError(
            f"{(~good).sum()} of {good.size} differ; first at {where}: got {got[where]!r}, wanted "
            f"{wanted[where]!r}, allowed {np.broadcast_to(limit, good.shape)[where]!r} {context}"
        )


def assert_bits_equal(actual, wanted, context=""):
    """Same dtype, same shape, same bytes."""
    actual, wanted = np.ascontiguousarray(actual), np.ascontiguousarray(wanted)
    assert actual.dtype == wanted.dtype, f"dtype {actual.dtype}, wanted {wanted.dtype} {context}"
    assert actual.shape == wanted.shape, f"shape {actual.shape}, wanted {wanted.shape} {context}"
    if actual.tobytes() != wanted.tobytes():
        raw = actual.reshape(-1).view(np.uint8).reshape(actual.size, -1)
        other = wanted.reshape(-1).view(np.uint8).reshape(actual.size, -1)
        first = int(np.argmax((raw != other).any(axis=1)))
        raise AssertionError(
            f"bits differ first at flat index {first}: {actual.reshape(-1)[first]!r} is not "
            f"{wanted.reshape(-1)[first]!r} {context}"
        )


def check(query, key, value, attn_mask=None, *, weights=False, context="", **options):
    """Call fastattn into a poisoned `out`, compare out and lse (and weights); return out."""
    want = expected(query, key, value, attn_mask, **options)
    out = np.full(want.out.shape, np.nan, query.dtype.newbyteorder("="))
    got = fastattn.scaled_dot_product_attention(
        query, key, value, attn_mask, out=out, return_lse=True, return_weights=weights, **options
    )
    assert got[0] is out
    assert_close(out, want.out, slack=want.out_slack, size=want.size, context=f"out {context}")
    assert got[1].dtype == accumulator(query.dtype)
    assert_close(got[1], want.lse, slack=want.lse_slack, context=f"lse {context}")
    if weights:
        assert got[2].dtype == out.dtype
        assert_close(got[2], want.weights, slack=want.weights_slack, context=f"weights {context}")
        assert not got[2][want.weights == 0].any(), f"a hidden key has weight {context}"
    return out
