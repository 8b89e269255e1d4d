# SPDX-License-Identifier: MIT
"""Rows times a weight matrix, or brought to length 1, in the dtype of the scores.

For what is changed before it meets a kernel: queries and keys of the scores that need it.
It checks nothing. The products are a BLAS's, one for each entry (or packed sequence) and head, or
our own where these have few rows, so that their bits depend neither on the rest of the batch nor on
how the rows lie in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import _backend  # which imports this module too: used in functions only
from ._bfloat16 import widened
from ._check_arrays import FLOAT32, FLOAT64, LARGEST, is_in_place

_FEW_ROWS = 32  # of an entry: a BLAS is as fast from there on
_BLOCK = 1 << 16  # numbers that are worked on at once: they stay in a cache
_GATHERED = 1 << 18  # the same where all threads work on them
# lengths whose products with numbers up to 1 stay normal and finite, with room to spare
_LENGTHS = {FLOAT32: (1e-25, 1e35), FLOAT64: (1e-280, 1e300)}


def project(
    rows: np.ndarray,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    acc: np.dtype,
    ends: np.ndarray | None = None,
) -> np.ndarray:
    """``rows @ weight + bias`` in `acc`, native and with unit inner stride; None leaves out.

    `rows` is (..., heads, rows, dim) with any strides; axes before the rows that repeat one element
    still do so in the result. `weight` (dim, hidden) and `bias` (hidden,) are compact arrays of
    `acc`. Without both, rows that can be read as they lie are returned as they are. A result beyond
    the range of `acc` is its largest number: what is finite in rows, weight and bias stays finite.
    With `ends` (from 0) the rows are those of packed sequences, each projected as on its own; what
    comes after the last one is 0.
    """
    if weight is None and bias is None and rows.dtype == acc and is_in_place(rows):
        return rows
    once = widened(_without_repeats(rows))
    with np.errstate(all="ignore"):
        if weight is None:
            result = np.array(once, dtype=acc, order="C")
        else:
            once = _for_blas(once, acc)
            result = _product(once, weight) if ends is None else _packed(once, weight, ends)
            _rescue(result, once, weight)
        if bias is not None:
            is_finite = np.isfinite(result) & np.isfinite(bias)
            result += bias
            _saturate(result, is_finite)
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    shape = (*rows.shape[:-1], result.shape[-1])
    return result if result.shape == shape else np.broadcast_to(result, shape)


def normalized(rows: np.ndarray, acc: np.dtype) -> np.ndarray:
    """Rows of length 1 in `acc`, zeros for zeros; axes that repeat one element still do so."""
    once = _without_repeats(rows)
    with np.errstate(all="ignore"):
        result = np.array(once, dtype=acc, order="C")
        for length in (_largest, _euclidean):  # first to about 1, where squares keep their digits
            by = length(result)
            by[by == 0.0] = 1.0
            result /= by
        np.add(1.0, 1.0)  # see project
    return np.broadcast_to(result, rows.shape)


def inverse_lengths(rows: np.ndarray, acc: np.dtype, scale: float) -> np.ndarray:
    """1 / length of each row in `acc`, 0 for zeros: ``rows.shape[:-1]``.

    NaN where a row is so long or so short that its products with rows of length `scale` may leave
    the range of `acc`, and for rows that are not finite. Never more than a block is copied.
    """
    shortest, longest = _LENGTHS[acc]
    shortest, longest = shortest / min(scale, 1.0), longest / max(scale, 1.0)
    once = _without_repeats(rows)
    lengths = np.empty(once.shape[:-1], acc)
    with np.errstate(all="ignore"):
        for some, result in _blocks(once, lengths):
            some = np.array(some, dtype=acc, order="C")
            top = _largest(some)
            top[top == 0.0] = 1.0
            some /= top
            result[...] = (top * _euclidean(some))[:, 0]
        is_usual = (lengths >= shortest) & (lengths <= longest)
        factors = np.where(is_usual, 1.0 / lengths, np.where(lengths == 0.0, 0.0, np.nan))
        np.add(1.0, 1.0)  # see project
    return np.broadcast_to(factors.astype(acc, copy=False), rows.shape[:-1])


def _blocks(rows: np.ndarray, results: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some rows (n, dim) at a time, and the place of their results (n,)."""
    size = rows.shape[-1]
    step = max(1, _BLOCK // max(1, size))
    pairs = [(rows[index], results[index]) for index in np.ndindex(rows.shape[:-2])]
    if rows.flags.c_contiguous:
        pairs = [(rows.reshape(-1, size), results.reshape(-1))] if rows.size else []
    for some, result in pairs:
        for first in range(0, len(some), step):
            yield some[first : first + step], result[first : first + step]


def _largest(rows: np.ndarray) -> np.ndarray:
    return abs(rows).max(axis=-1, keepdims=True, initial=0.0)


def _euclidean(rows: np.ndarray) -> np.ndarray:
    return np.sqrt((rows * rows).sum(axis=-1, keepdims=True))


def _without_repeats(rows: np.ndarray) -> np.ndarray:
    """Axes before the rows that repeat one element cut to one."""
    return rows[tuple(slice(0, 1) if s == 0 else slice(None) for s in rows.strides[:-2])]


def _for_blas(rows: np.ndarray, acc: np.dtype) -> np.ndarray:
    """The rows as a BLAS takes them, one after another; every other form would take another way."""
    if rows.dtype == acc and is_in_place(rows):
        stride = rows.strides[-2]
        if rows.shape[-1] * rows.itemsize <= stride < 1 << 31:
            return rows
    return np.array(rows, dtype=acc, order="C")


def _product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """``rows @ weight`` (..., rows, dim) such that no entry's bits depend on the others.

    A BLAS must take the entries one by one, and reads the whole weight for each: where they have
    few rows, that takes longer than the attention.
    """
    if rows.size and rows.shape[-2] <= _FEW_ROWS:
        result = np.empty((*rows.shape[:-1], weight.shape[1]), rows.dtype)
        if _backend.product(rows.reshape(-1, rows.shape[-1]), weight, result):
            return result
    return np.matmul(rows, weight)


def _packed(rows: np.ndarray, weight: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The same for the sequences that (heads, rows, dim) are: those of few rows together."""
    n_heads, n_rows, size = rows.shape
    lengths = np.diff(ends)
    result = np.zeros((n_heads, n_rows, weight.shape[1]), rows.dtype)
    is_done = np.zeros(len(lengths), bool)
    is_few = lengths <= _FEW_ROWS
    if size and is_few.any():
        places = np.flatnonzero(np.repeat(is_few, lengths))
        step = max(1, _GATHERED // (n_heads * max(size, weight.shape[1])))
        for few in (places[first : first + step] for first in range(0, len(places), step)):
            part = np.empty((n_heads, len(few), weight.shape[1]), rows.dtype)
            if not _backend.product(rows[:, few].reshape(-1, size), weight, part):
                break
            result[:, few] = part
        else:
            is_done = is_few
    for sequence in np.flatnonzero(~is_done):
        some = slice(ends[sequence], ends[sequence + 1])
        np.matmul(rows[:, some], weight, out=result[:, some])
    return result


def _rescue(result: np.ndarray, rows: np.ndarray, weight: np.ndarray) -> None:
    """Do again what overflowed: large terms of opposite sign must not become NaN."""
    bad = ~np.isfinite(result)
    if not bad.any():
        return
    bad &= np.isfinite(rows).all(axis=-1)[..., None] & np.isfinite(weight).all(axis=0)
    rows_again = np.argwhere(bad.any(axis=-1))
    if len(rows_again) == 0:
        return
    # rows and columns brought to about 1: nothing overflows but the result. Row by row, so that
    # the bits of one do not depend on how many overflow.
    columns, column_exponents = _near_one(np.where(np.isfinite(weight), weight, 0).T)
    for index in map(tuple, rows_again):
        row, exponent = _near_one(rows[index])
        again = np.ldexp(columns @ row, exponent + column_exponents[:, 0])
        limit = LARGEST[result.dtype]
        result[index] = np.where(bad[index], np.clip(again, -limit, limit), result[index])


def _near_one(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows scaled by powers of two to a largest element of 1/2 to 1, in float64; the exponents."""
    rows = rows.astype(np.float64)
    _, exponent = np.frexp(abs(rows).max(axis=-1, keepdims=True))
    return np.ldexp(rows, -exponent), exponent


def _saturate(array: np.ndarray, where: np.ndarray) -> None:
    overflow = np.isinf(array) & where
    if overflow.any():
        array[overflow] = np.copysign(LARGEST[array.dtype], array[overflow])
