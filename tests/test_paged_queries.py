# SPDX-License-Identifier: MIT
# PagedKVCache: wrong calls of attend.
# Used by the suite, on every backend.
# Wrong ids and the other methods are in test_paged_errors.py.
"""A wrong query or option is named, nothing is written, and the cache is as it was."""

from functools import partial

import numpy as np
import pytest
from check_int8 import as_dtype
from test_paged_errors import Given, zeros

F = np.float32


@pytest.fixture
def given():
    return Given()


QUERIES = [
    ("query", zeros(4, 8), ValueError, "query"),
    ("query", zeros(1, 2, 4, 8), ValueError, "query"),
    ("query", zeros(2, 3, 8), ValueError, "query: .*heads.*2.*3"),
    ("query", zeros(2, 1, 8), ValueError, "query: .*heads"),
    ("query", zeros(2, 4, 6), ValueError, "query: .*8.*6"),
    ("query", zeros(2, 4, 8, dtype="f2"), TypeError, "query: .*float32.*float16"),
    ("query", zeros(2, 4, 8, dtype="f8"), TypeError, "query: .*float32.*float64"),
    ("query", zeros(2, 4, 8, dtype=int), TypeError, "query"),
    ("query", np.ma.zeros((2, 4, 8), F), TypeError, "query"),
    ("query", None, TypeError, "query"),
    ("window", -2, ValueError, "window"),
    ("window", 1.5, TypeError, "window"),
    ("is_causal", 2, TypeError, "is_causal"),
    ("q_offset", "upper_left", ValueError, "q_offset"),
    ("q_offset", [1, 2, 3], ValueError, "q_offset"),
    ("q_offset", 1.0, TypeError, "q_offset"),
    ("q_offset", None, TypeError, "q_offset"),
    ("scale", float("nan"), ValueError, "scale"),
    ("scale", "1", TypeError, "scale"),
    ("softcap", -1.0, ValueError, "softcap"),
    ("sinks", zeros(2), ValueError, "sinks"),
    ("sinks", zeros(4, dtype=int), TypeError, "sinks"),
    ("alibi_slopes", zeros(2), ValueError, "alibi_slopes"),
    ("alibi_slopes", zeros(3, 4), ValueError, "alibi_slopes"),
    ("alibi_slopes", np.full(4, np.inf), ValueError, "alibi_slopes"),
    ("out", zeros(2, 4, 8), ValueError, "out"),
    ("out", zeros(4, 2, 6), ValueError, "out"),
    ("out", zeros(2, 4, 6, dtype="f8"), TypeError, "out"),
    ("out", zeros(2, 4, 6).tolist(), TypeError, "out"),
    ("return_lse", "yes", TypeError, "return_lse"),
    *((name, None, TypeError, f".*{name}") for name in
      ("attn_mask", "bias", "kv_lengths", "layout", "return_weights", "cu_seqlens")),
    *(("cu_seqlens_q", *x, "cu_seqlens_q") for x in (
        ([0, 2], ValueError), ([0, 1, 1, 2], ValueError), ([0, 2, 1], ValueError),
        ([1, 1, 2], ValueError), ([0, 1, 3], ValueError), ([0, -1, 2], ValueError),
        ([[0, 1, 2]], ValueError), (2, ValueError), ([0.0, 1.0, 2.0], TypeError),
        ([False, True, True], TypeError), ("012", TypeError),
    )),
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(QUERIES)), ids=lambda n: f"{n}-{QUERIES[n][3]}")
def test_wrong_queries(backend, given, n):
    name, wrong, error, message = QUERIES[n]
    out = np.full((2, 4, 6), 7.5, F)
    call = {"query": zeros(2, 4, 8), "out": out} | {name: wrong}
    ids = [given.a, given.b]
    given.fails(error, f"^{message}", lambda: given.cache.attend(ids, **call))
    assert (out == 7.5).all()


def test_out_that_cannot_take_the_result(backend, given):
    """Cases 109, 118: a read-only out, and one in which elements share memory."""
    frozen = zeros(2, 4, 6)
    frozen.flags.writeable = False
    shared = np.lib.stride_tricks.as_strided(zeros(1, 4, 6), (2, 4, 6), (0, 24, 4))
    for out in (frozen, shared):
        attend = partial(given.cache.attend, [given.a, given.b], zeros(2, 4, 8), out=out)
        given.fails(ValueError, "^out", attend)


@pytest.mark.parametrize(("dtype", "bad"), [
    ("float16", ["f8", "i4"]), ("float64", ["f4", "f2"]), ("bfloat16", ["f2", "f8", "u2"]),
    ("int8", ["f8", "i1", "i4", ">f8"]),
])  # fmt: skip
def test_dtypes_of_queries(backend, dtype, bad):
    kind = as_dtype(dtype)
    given = Given(kind, F if dtype == "int8" else kind)
    for other in bad:
        query = zeros(2, 4, 8, dtype=other)
        with pytest.raises(TypeError, match="^query: "):
            given.cache.attend([given.a, given.b], query)
    with pytest.raises(TypeError, match="^out"):
        wrong = "f4" if dtype == "float64" else "f8"
        given.cache.attend([given.a, given.b], given.query, out=zeros(2, 4, 6, dtype=wrong))
