# SPDX-License-Identifier: MIT
"""Attention in float64, one (batch entry, head) at a time, and what may differ.

Used by `selftest` and `bench` to judge every backend, the NumPy reference included.
It shares no code with the package's own computing or checking, and makes no attempt to be fast.

The tolerance of an output element is::

    (rtol + 2**-22 * score_size) * sum_j w_j |v_j| + atol + one unit in the last place of its dtype

where ``score_size`` is the largest ``sum of |terms|`` of a score that the row sees: a score of size
s cannot be known better than s times the unit of float32, and the exponential turns that absolute
error into a relative one.  For float64 the units are float64's.  To it comes what the caller of
`compare` excuses, if anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["Difference", "Expected", "attention", "compare"]


@dataclass
class Expected:
    """Expected results, heads first: ``(*lead, heads, rows, ...)`` in float64."""

    out: np.ndarray
    lse: np.ndarray
    weights: np.ndarray | None
    value_size: np.ndarray  # sum_j w_j |v_j| for every element of out
    score_size: np.ndarray  # for every row: the largest sum of |terms| of a score that it sees
    excused: np.ndarray | float = 0.0  # by how much more every element of out may differ


class Difference(NamedTuple):
    """The element of a result that is furthest from what was expected."""

    error: float  # in units of the tolerance; inf where one side only is NaN or infinite
    where: tuple  # index, heads first
    got: float
    want: float


def attention(
    query, key, value, attn_mask=None, *, bias=None, is_causal=False, scale=None, q_offset=0,
    kv_lengths=None, window=None, softcap=0.0, alibi_slopes=None, sinks=None, layout="bhsd",
    attention_v=None, rows=None, want_weights=False,
) -> Expected:  # fmt: skip
    """Compute attention from the formula; the arguments are those of the public functions.

    Parameters
    ----------
    attention_v : array (hidden,), optional
        Scores are additive, of projected queries and keys.
    rows : array of int, optional
        Compute these query rows only (of every batch entry and head).
    want_weights : bool
        Whether to keep the weights, which take ``rows x keys`` elements per head.
    """
    query, key, value = (_heads_first(array, layout) for array in (query, key, value))
    lead = np.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    query, key, value = (np.broadcast_to(a, lead + a.shape[-3:]) for a in (query, key, value))
    n_heads, n_queries, head_size = query.shape[-3:]
    n_keys = key.shape[-2]
    group = max(1, n_heads // max(1, key.shape[-3]))
    full = (*lead, n_heads, n_queries, n_keys)
    scale = 1 / math.sqrt(head_size) if scale is None else float(scale)
    lengths = np.broadcast_to(n_keys if kv_lengths is None else kv_lengths, lead)
    lower_right = isinstance(q_offset, str)
    offsets = lengths - n_queries if lower_right else np.broadcast_to(q_offset, lead)
    left, right = _window_sides(window)
    slopes = np.broadcast_to(0.0 if alibi_slopes is None else alibi_slopes, (*lead, n_heads))
    terms = [np.broadcast_to(t, full) for t in (attn_mask, bias) if t is not None]
    rows = np.arange(n_queries) if rows is None else np.asarray(rows)

    shape = (*lead, n_heads, len(rows))
    expected = Expected(
        out=np.zeros((*shape, value.shape[-1])),
        lse=np.full(shape, -np.inf),
        weights=np.zeros((*shape, n_keys)) if want_weights else None,
        value_size=np.zeros((*shape, value.shape[-1])),
        score_size=np.zeros(shape),
    )
    j = np.arange(n_keys)
    for entry in np.ndindex(*lead, n_heads):
        batch, head = entry[:-1], entry[-1]
        q = query[entry][rows].astype(np.float64)
        k, v = (a[(*batch, head // group)].astype(np.float64) for a in (key, value))
        distance = (rows + int(offsets[batch]))[:, None] - j  # p - j
        allowed = np.broadcast_to(j < lengths[batch], distance.shape)
        allowed = allowed & (distance >= -right) & (distance <= left)
        if is_causal:
            allowed = allowed & (distance >= 0)
        with np.errstate(all="ignore"):  # hidden data may hold anything
            if attention_v is None:
                score, size = scale * (q @ k.T), abs(scale) * (np.abs(q) @ np.abs(k).T)
            else:
                score, size = _additive(q, k, attention_v)
            if softcap:
                score = softcap * np.tanh(score / softcap)
            added = [-float(slopes[entry]) * np.abs(distance)]
            for term in terms:
                if term.dtype == np.bool_:
                    allowed = allowed & term[entry][rows]
                else:
                    added.append(term[entry][rows].astype(np.float64))
                    allowed = allowed & ~np.isneginf(added[-1])
            score, size = score + sum(added), size + sum(map(np.abs, added))
        sink = -np.inf if sinks is None else float(sinks[head])
        _softmax_row(expected, entry, score, size, allowed, v, sink)
    return expected


def _additive(q, k, vector):
    """Additive scores (rows, keys) and what bounds ``sum of |terms|``, as no tanh is beyond 1.

    One row at a time: ``keys x hidden`` values of tanh in memory.
    """
    vector = vector.astype(np.float64)
    score = np.array([np.tanh(row + k) @ vector for row in q]).reshape(len(q), len(k))
    return score, np.full(score.shape, np.abs(vector).sum())


def _softmax_row(expected, entry, score, size, allowed, v, sink) -> None:
    """Fill in the rows of one head from its scores (rows, keys) and values (keys, channels)."""
    score = np.where(allowed, score, -np.inf)
    top = np.maximum(score.max(axis=1, initial=-np.inf), sink)
    top = np.where(np.isneginf(top), 0.0, top)
    weight = np.where(allowed, np.exp(score - top[:, None]), 0.0)
    total = weight.sum(axis=1) + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        expected.lse[entry] = np.log(total) + top
    weight = weight / np.where(total > 0, total, 1.0)[:, None]
    v = np.where(allowed.any(axis=0)[:, None], v, 0.0)  # what no row sees may be NaN
    expected.out[entry] = weight @ v
    expected.value_size[entry] = weight @ np.abs(v)
    expected.score_size[entry] = np.where(allowed, size, 0.0).max(axis=1, initial=0.0)
    if expected.weights is not None:
        expected.weights[entry] = weight


def _heads_first(array, layout):
    """View with axes (*lead, heads, sequence, channels), whatever the layout and rank."""
    if array.ndim == 2:
        return array[None]
    return array.swapaxes(-3, -2) if layout == "bshd" else array


def _window_sides(window):
    """How far a row sees to its left and right, inf for unbounded."""
    left, right = (window, window) if window is None or np.ndim(window) == 0 else window
    return tuple(math.inf if side is None or side == -1 else int(side) for side in (left, right))


def compare(result, expected: Expected, what: str, layout: str = "bhsd") -> Difference:
    """Compare a result with what was expected.

    Parameters
    ----------
    result : ndarray
        What the package returned, in its own rank, layout and dtype.
    what : {"out", "lse", "weights"}
        Which of its results that is.

    Returns
    -------
    Difference
        Of the worst element.
    """
    want = getattr(expected, what)
    dtype = result.dtype
    if what == "out":
        result = _heads_first(result, layout)
    got = result.astype(np.float64).reshape(want.shape)
    if want.size == 0:
        return Difference(0.0, (), 0.0, 0.0)
    rtol, atol, unit = (1e-12, 1e-13, 2.0**-50) if dtype == np.float64 else (2e-5, 2e-6, 2.0**-22)
    score_size = expected.score_size[..., None] if what != "lse" else expected.score_size
    relative = rtol + unit * score_size
    if what == "out":
        tolerance = relative * expected.value_size + atol + expected.excused
    elif what == "weights":
        tolerance = np.where(want == 0, 0.0, relative * want + 0.1 * atol)
        # A weight of an allowed key may underflow to 0; one of a hidden key must be 0 exactly.
    else:
        tolerance = relative + 0.1 * rtol * np.abs(want)
    if what != "lse" and dtype.itemsize == 2:
        digits, smallest = (10, 2.0**-24) if dtype == np.float16 else (7, 2.0**-133)
        tolerance = tolerance + np.where(want == 0, 0.0, 2.0**-digits * np.abs(want) + smallest)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want) / tolerance)
    error = np.where(np.isnan(error), np.inf, error)
    where = np.unravel_index(int(error.argmax()), error.shape)
    where = tuple(int(i) for i in where)
    return Difference(float(error[where]), where, float(got[where]), float(want[where]))
