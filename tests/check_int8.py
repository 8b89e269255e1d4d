# SPDX-License-Identifier: MIT
# What a cache keeps of the tokens it gets: int8 codes by the documented rule, all else as it is.
# Used by test_int8*.py and test_paged*.py; tested itself in test_check_int8.py.
# It never calls fastattn to find a code; `contents` and Sequence look at caches through attend.
"""Rows as int8 caches keep them, numbers that have only one nearest code, and a look inside.

A row is one token of one head. Its scale is the float32 max|x| / 127, its codes are the integers
nearest to x / scale, and attention uses code * scale. A row with a NaN or an infinity is NaN.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from check import draw

import fastattn

# (cache, what is appended, query): every combination of dtypes that a cache takes.
KINDS = [
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("float16", "float16", "float16"),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "bfloat16", "float32"),
    ("int8", "float32", "float32"),
    ("int8", "float16", "float16"),
    ("int8", "bfloat16", "float32"),
    ("int8", "float32", "bfloat16"),
]
INT8_KINDS = [kind for kind in KINDS if kind[0] == "int8"]
# Those that exist here, for tests that choose at random and must not be skipped as a whole.
USABLE_KINDS = [
    kind for kind in KINDS if "bfloat16" not in kind or importlib.util.find_spec("ml_dtypes")
]


def as_dtype(name):
    """The dtype of that name; without the package that has bfloat16, the test is skipped."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def as_dtypes(names):
    return tuple(as_dtype(name) for name in names)


def codes(x):
    """(codes, scales) of the rows along the last axis: float64 integers, float32 (..., 1)."""
    x = np.asarray(x).astype(np.float32)
    scales = abs(x).max(axis=-1, keepdims=True, initial=0) / np.float32(127)
    return np.rint(x.astype(np.float64) / np.where(scales == 0, np.float32(1), scales)), scales


def stored(x, dtype):
    """What a cache of this dtype holds of x, in float64."""
    x = np.asarray(x)
    if np.dtype(dtype) != np.int8:
        return x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        whole, scales = codes(x)
        rows = whole * scales.astype(np.float64)
        rows[~np.isfinite(x.astype(np.float32)).all(axis=-1)] = np.nan
    return rows


def untied(x):
    """x with numbers moved that lie halfway between two codes.

    There a float32 quotient may be rounded either way, and a wrong code is an error of a whole
    step, which no tolerance for rounding covers.
    """
    x = np.array(x)
    whole, scales = codes(x)
    exact = x.astype(np.float64) / np.where(scales == 0, np.float32(1), scales)
    near = abs(abs(exact - whole) - 0.5) < 1e-2
    x[near] = (whole * scales)[near].astype(x.dtype)
    return x


def draw_tokens(rng, shape, dtype=np.float32, size=1.0):
    """Normal numbers of this dtype whose int8 codes are beyond doubt."""
    return untied(draw(rng, shape, dtype, size))


def contents(attend, n_tokens, kv_heads, dim, dtype=np.float32):
    """(keys, values) that one sequence holds: (tokens, kv_heads, size) each.

    Row i sees key i alone, so `out` is its value; query head n of a group is the unit vector n, so
    `lse` is element n of its key. attend(query, **options) takes and returns (tokens, heads, size).
    """
    query = np.broadcast_to(np.tile(np.eye(dim, dtype=dtype), (kv_heads, 1)), (
        n_tokens, kv_heads * dim, dim))  # fmt: skip
    out, lse = attend(query, window=0, scale=1.0, return_lse=True)
    return lse.T.reshape(n_tokens, kv_heads, dim), out[:, ::dim]


SIZES = (2, 5, 7)  # of a Sequence: heads, size of keys, size of values


class Sequence:
    """One sequence of an int8 cache; tokens are (tokens, heads, size) for both kinds of cache."""

    def __init__(self, kind):
        heads, dim, dv = SIZES
        self.is_paged = kind == "paged"
        if self.is_paged:
            self.cache = fastattn.PagedKVCache(99, 3, heads, dim, value_head_size=dv, dtype="int8")
            self.id = self.cache.add_sequence()
        else:
            self.cache = fastattn.KVCache(1, heads, dim, value_head_size=dv, dtype="int8")

    def append(self, key, value):
        if self.is_paged:
            return self.cache.append(self.id, key, value)
        return self.cache.append(*(x.swapaxes(0, 1)[None] for x in (key, value)))

    def attend(self, query, **options):
        if self.is_paged:
            return self.cache.attend(self.id, query, **options)
        got = self.cache.attend(query[None], layout="bshd", **options)
        return tuple(x[0] for x in got) if isinstance(got, tuple) else got[0]

    def rows(self, n):
        return contents(self.attend, n, *SIZES[:2])


def filled(kind, *tokens):
    """A sequence of that kind of cache, with these keys and values."""
    made = Sequence(kind)
    if tokens:
        made.append(*tokens)
    return made
