# SPDX-License-Identifier: MIT
# KVCache: wrong calls.
# Used by the suite, on every backend where something is computed.
# Scarce memory and empty sizes are in test_cache_limits.py.
"""A call that fails names the argument and leaves the cache as it was."""

import numpy as np
import pytest
from check import assert_bits_equal, draw

import fastattn

F = np.float32


def zeros(*shape, dtype=F):
    return np.zeros(shape, dtype)


@pytest.fixture
def cache(rng):
    """Two entries of 5 and 3 tokens, 2 heads, sizes 8 and 6; the storage has room for 7."""
    cache = fastattn.KVCache(2, 2, 8, value_head_size=6, capacity=7)
    cache.append(draw(rng, (2, 2, 5, 8)), draw(rng, (2, 2, 5, 6)), lengths=[5, 3])
    return cache


def fails_unchanged(cache, error, message, call):
    """The call fails with that, and nothing of the cache is different."""
    before = [x.copy() for x in cache._store]
    with pytest.raises(error, match=message):
        call()
    assert cache.lengths.tolist() == [5, 3] and cache.capacity == 7
    for store, was in zip(cache._store, before):
        for entry, n in enumerate([5, 3]):
            assert_bits_equal(store[entry, :, :n], was[entry, :, :n])


NEW = [
    ({"batch": -1}, ValueError, "batch"),
    ({"batch": 1.5}, TypeError, "batch"),
    ({"batch": True}, TypeError, "batch"),
    ({"num_kv_heads": -2}, ValueError, "num_kv_heads"),
    ({"num_kv_heads": None}, TypeError, "num_kv_heads"),
    ({"head_size": "8"}, TypeError, "head_size"),
    ({"head_size": -8}, ValueError, "head_size"),
    ({"value_head_size": -1}, ValueError, "value_head_size"),
    ({"value_head_size": 2.0}, TypeError, "value_head_size"),
    ({"capacity": -1}, ValueError, "capacity"),
    ({"capacity": None}, TypeError, "capacity"),
    ({"capacity": np.array([1, 2])}, TypeError, "capacity"),
    ({"dtype": None}, TypeError, "dtype"),
    ({"dtype": "float33"}, TypeError, "dtype: .*'float33'"),
    ({"dtype": "uint8"}, TypeError, "dtype: .*'uint8'"),
    ({"dtype": np.int16}, TypeError, "dtype: .*int16"),
    ({"dtype": int}, TypeError, "dtype: expected .*float16.*bfloat16.*float32.*float64.*got"),
    ({"dtype": complex}, TypeError, "dtype"),
    ({"dtype": np.longdouble}, TypeError, "dtype"),
    ({"dtype": "2f4"}, TypeError, "dtype"),
    ({"dtype": 7}, TypeError, "dtype"),
    ({"capacity": 2**45}, MemoryError, ""),
    ({"capacity": 2**70}, MemoryError, ""),
]


@pytest.mark.parametrize("wrong", NEW, ids=lambda w: str(w[0]))
def test_wrong_sizes_and_dtypes(wrong):
    change, error, message = wrong
    with pytest.raises(error, match=f"^{message}"):
        fastattn.KVCache(**{"batch": 2, "num_kv_heads": 2, "head_size": 8} | change)


APPENDED = [
    ({"key": zeros(2, 2, 4)}, ValueError, "key"),
    ({"key": zeros(1, 2, 4, 8)}, ValueError, "key"),
    ({"key": zeros(2, 1, 4, 8)}, ValueError, "key"),
    ({"key": zeros(2, 2, 4, 6)}, ValueError, r"key: expected shape \(2, 2, tokens, 8\), got"),
    ({"key": zeros(2, 2, 3, 8)}, ValueError, "value: expected 3 tokens"),
    ({"key": zeros(2, 2, 4, 8, dtype="f8")}, TypeError, "key: expected dtype float32"),
    ({"key": zeros(2, 2, 4, 8, dtype=int)}, TypeError, "key"),
    ({"key": None}, TypeError, "key"),
    ({"key": [[1.0], [2.0, 3.0]]}, ValueError, "key"),
    ({"key": np.ma.zeros((2, 2, 4, 8), F)}, TypeError, "key"),
    ({"value": zeros(2, 2, 4, 8)}, ValueError, "value"),
    ({"value": zeros(2, 2, 0, 6)}, ValueError, "value"),
    ({"value": zeros(3, 2, 4, 6)}, ValueError, "value"),
    ({"value": zeros(2, 2, 4, 6, dtype="f2")}, TypeError, "value"),
    ({"lengths": [1, 2, 3]}, ValueError, "lengths"),
    ({"lengths": [[1, 2]]}, ValueError, "lengths"),
    ({"lengths": [1, 5]}, ValueError, "lengths: expected 0 to 4, .* got 5"),
    ({"lengths": [-1, 2]}, ValueError, "lengths: .* got -1"),
    ({"lengths": np.uint64([1, 2**64 - 1])}, ValueError, "lengths"),
    ({"lengths": 5}, ValueError, "lengths"),
    ({"lengths": [1.0, 2.0]}, TypeError, "lengths"),
    ({"lengths": [True, False]}, TypeError, "lengths"),
    ({"lengths": "12"}, TypeError, "lengths"),
]


@pytest.mark.parametrize("wrong", APPENDED, ids=lambda w: w[2])
def test_wrong_tokens(cache, wrong):
    change, error, message = wrong
    given = {"key": zeros(2, 2, 4, 8), "value": zeros(2, 2, 4, 6)} | change
    fails_unchanged(cache, error, f"^{message}", lambda: cache.append(**given))


QUERIES = [
    ({"query": zeros(2, 4, 8)}, ValueError, r"query: expected 4 axes \(batch, heads, q"),
    ({"query": zeros(4, 8), "layout": "bshd"}, ValueError, r"query: .*\(batch, queries, heads"),
    ({"query": zeros(3, 4, 1, 8)}, ValueError, "query: expected 2 or 1 entries"),
    ({"query": zeros(2, 3, 1, 8)}, ValueError, "query: expected a number of heads"),
    ({"query": zeros(2, 1, 1, 8)}, ValueError, "query: expected a number of heads"),
    ({"query": zeros(2, 4, 1, 8), "layout": "bshd"}, ValueError, "query: expected a number of h"),
    ({"query": zeros(2, 4, 1, 6)}, ValueError, "query: expected head size 8"),
    ({"query": zeros(2, 4, 1, 8, dtype="f2")}, TypeError, "query: expected dtype float32, that"),
    ({"query": zeros(2, 4, 1, 8, dtype="f8")}, TypeError, "query"),
    ({"query": zeros(2, 4, 1, 8, dtype=int)}, TypeError, "query"),
    ({"query": None}, TypeError, "query"),
    ({"kv_lengths": [4, 4]}, ValueError, "kv_lengths: expected at most 3 for entry 1"),
    ({"kv_lengths": [6, 1]}, ValueError, "kv_lengths: expected 0 to 5"),
    ({"kv_lengths": [-1, 1]}, ValueError, "kv_lengths"),
    ({"kv_lengths": [1, 2, 3]}, ValueError, "kv_lengths"),
    ({"kv_lengths": 1.0}, TypeError, "kv_lengths"),
    ({"attn_mask": zeros(7)}, ValueError, "attn_mask"),
    ({"bias": zeros(3, 5)}, ValueError, "bias"),
    ({"layout": "sbhd"}, ValueError, "layout"),
    ({"layout": None}, TypeError, "layout"),
    ({"window": -2}, ValueError, "window"),
    ({"is_causal": 2}, TypeError, "is_causal"),
    ({"q_offset": "upper_left"}, ValueError, "q_offset"),
    ({"scale": float("nan")}, ValueError, "scale"),
    ({"softcap": -1.0}, ValueError, "softcap"),
    ({"sinks": zeros(2)}, ValueError, "sinks"),
    ({"alibi_slopes": zeros(2)}, ValueError, "alibi_slopes"),
    ({"out": zeros(2, 4, 1, 8)}, ValueError, "out"),
    ({"out": zeros(2, 4, 1, 6, dtype="f2")}, TypeError, "out"),
    ({"dropout_p": 0.0}, TypeError, ".*dropout_p"),
]


@pytest.mark.parametrize("wrong", QUERIES, ids=lambda w: f"{[*w[0]][-1]}-{w[2]}")
def test_wrong_queries(backend, cache, wrong):
    change, error, message = wrong
    given = {"query": zeros(2, 4, 1, 8)} | change
    fails_unchanged(cache, error, f"^{message}", lambda: cache.attend(**given))


def test_wrong_queries_of_half_caches():
    cache = fastattn.KVCache(1, 1, 8, dtype="float16")
    for dtype in ("f8", "i4"):
        with pytest.raises(TypeError, match="^query: expected dtype float16, .* or float32"):
            cache.attend(zeros(1, 1, 1, 8, dtype=dtype))
    with pytest.raises(TypeError, match="^out"):
        cache.attend(zeros(1, 1, 1, 8), out=zeros(1, 1, 1, 8, dtype="f2"))
    with pytest.raises(TypeError, match="^key"):  # nothing is rounded silently
        cache.append(zeros(1, 1, 1, 8), zeros(1, 1, 1, 8))


CHANGES = [
    ("reorder", [0], ValueError, "indices: expected shape"),
    ("reorder", 0, ValueError, "indices"),
    ("reorder", [0, 2], ValueError, "indices: expected 0 to 1, got 2"),
    ("reorder", [-1, 0], ValueError, "indices"),
    ("reorder", np.uint64([0, 2**63]), ValueError, "indices"),
    ("reorder", [0.0, 1.0], TypeError, "indices"),
    ("reorder", [False, True], TypeError, "indices"),
    ("reorder", None, TypeError, "indices"),
    ("truncate", 6, ValueError, "lengths: expected 0 to 5"),
    ("truncate", 4, ValueError, "lengths: expected at most 3 for entry 1"),
    ("truncate", [3, 4], ValueError, "lengths: expected at most 3 for entry 1"),
    ("truncate", -1, ValueError, "lengths"),
    ("truncate", [1, -1], ValueError, "lengths"),
    ("truncate", [1, 1, 1], ValueError, "lengths"),
    ("truncate", 1.0, TypeError, "lengths"),
    ("truncate", None, TypeError, "lengths"),
]


@pytest.mark.parametrize("wrong", CHANGES, ids=lambda w: f"{w[0]}-{w[1]}")
def test_wrong_changes(cache, wrong):
    method, given, error, message = wrong
    fails_unchanged(cache, error, f"^{message}", lambda: getattr(cache, method)(given))


def test_more_than_fits_the_memory(cache):
    """An append of more than an address can say."""
    key, value = (np.broadcast_to(F(0), (2, 2, 2**45, size)) for size in (8, 6))
    fails_unchanged(cache, MemoryError, "allocate", lambda: cache.append(key, value))
    wide = fastattn.KVCache(1, 1, 1, value_head_size=2**32)  # keys would fit, values do not
    key, value = (np.broadcast_to(F(0), (1, 1, 2**13, size)) for size in (1, 2**32))
    with pytest.raises(MemoryError):
        wide.append(key, value)
    assert wide.capacity == 0 and wide.lengths.tolist() == [0]
