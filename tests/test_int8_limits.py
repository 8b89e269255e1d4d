# SPDX-License-Identifier: MIT
# KVCache of int8: wrong dtypes, memory, empty sizes.
# Used by the suite, on every backend where something is computed; limits of memory on Linux.
# The other errors of caches, which have nothing to do with dtypes, are in test_cache_errors.py.
"""What an int8 cache takes and refuses, and what it costs."""

import itertools
import tracemalloc
from functools import partial

import numpy as np
import pytest
from check import assert_bits_equal, draw, expected
from check_cache import EVERY, assert_results
from check_int8 import as_dtype, draw_tokens, stored
from test_memory import COMMON, LINUX

import fastattn

F = np.float32
COMPILED = [name for name in fastattn.backends() if name != "numpy"]


def zeros(*shape, dtype=F):
    return np.zeros(shape, dtype)


@pytest.fixture
def cache(rng):
    cache = fastattn.KVCache(2, 2, 8, value_head_size=6, capacity=7, dtype="int8")
    cache.append(draw(rng, (2, 2, 5, 8)), draw(rng, (2, 2, 5, 6)), lengths=[5, 3])
    return cache


def fails_unchanged(cache, message, call):
    query = np.ones((2, 4, 3, 8), F)
    before = cache.attend(query)
    with pytest.raises(TypeError, match=message):
        call()
    assert cache.lengths.tolist() == [5, 3] and cache.capacity == 7
    assert_bits_equal(cache.attend(query), before)


@pytest.mark.parametrize("dtype", ["f8", "i1", "i4", "u1", "?", "c8", ">f8"])
@pytest.mark.parametrize("name", ["key", "value"])
def test_wrong_dtypes_of_tokens(cache, name, dtype):
    """Neither what would lose more than the codes do, nor codes without their scales."""
    given = {"key": zeros(2, 2, 4, 8), "value": zeros(2, 2, 4, 6)}
    given[name] = given[name].astype(dtype)
    fails_unchanged(cache, f"^{name}: .*float32", lambda: cache.append(**given))


HALVES = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("names", [*itertools.permutations(HALVES, 2)], ids="-".join)
def test_keys_and_values_share_a_dtype(cache, names):
    one, other = (as_dtype(name) for name in names)
    key, value = zeros(2, 2, 4, 8, dtype=one), zeros(2, 2, 4, 6, dtype=other)
    message = f"^(key, )?value: .*{names[0]}.*{names[1]}"
    fails_unchanged(cache, message, lambda: cache.append(key, value))


@pytest.mark.parametrize("dtype", ["f8", "i1", "i4", "?", "c8"])
def test_wrong_dtypes_of_queries(backend, cache, dtype):
    query = zeros(2, 4, 1, 8, dtype=dtype)
    fails_unchanged(cache, "^query: .*float32", lambda: cache.attend(query))


def test_out_has_the_dtype_of_the_query(backend, cache):
    for query, out in (("f4", "f2"), ("f2", "f4"), ("f4", "i1"), ("f2", "i1"), ("f4", "f8")):
        wrong = {"out": zeros(2, 4, 1, 6, dtype=out)}
        fails_unchanged(
            cache, "^out", partial(cache.attend, zeros(2, 4, 1, 8, dtype=query), **wrong)
        )


def test_a_token_costs_its_codes_and_scales():
    """A byte an element and four a row, for keys and for values; float16 needs twice as much."""
    tracemalloc.start()
    try:
        cache = fastattn.KVCache(2, 3, 64, value_head_size=32, capacity=5000, dtype="int8")
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cache.capacity == 5000
    assert used < 1.5 * 2 * 3 * 5000 * (64 + 32 + 4 + 4)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attend_copies_nothing(name, rng, dtype):
    """Neither keys nor values nor scales, for equal and for different lengths."""
    k = np.broadcast_to(F(1), (2, 2, 20_000, 16))
    cache = fastattn.KVCache(2, 2, 16, dtype="int8")
    with fastattn.use_backend(name):
        for lengths, queries in itertools.product(([20_000, 20_000], [20_000, 3]), (1, 40)):
            cache.reset()
            cache.append(k, k, lengths=lengths)
            query = draw(rng, (2, 4, queries, 16), dtype)
            cache.attend(query)
            tracemalloc.start()
            try:
                cache.attend(query)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 100_000  # the keys of one head have 320,000 bytes, its scales 80,000


LIMITED = (
    COMMON
    + """
MB = 1 << 20
tokens = np.ones((4, 1, 1 << 16, 16), "f4")
cache = fastattn.KVCache(4, 1, 16, dtype="int8")
cache.append(tokens, tokens)  # 4 MiB of codes and 1 MiB of scales, twice
lengths = [1 << 16, 1 << 16, 5, 9]
cache.truncate(lengths)
query = np.ones((4, 2, 1, 16), "f4")
want = cache.attend(query).tobytes()

def until_it_fits(call):
    extra = n_failed = 0
    while True:
        allow(extra + 4096)
        try:
            return call()
        except MemoryError:
            n_failed += 1
        finally:
            allow(0)
            assert n_failed > 0, "never short of memory: nothing was tested"
        assert cache.lengths.tolist() == lengths and cache.capacity == 1 << 16
        assert cache.attend(query).tobytes() == want
        extra += MB + MB // 2
        assert extra < 100 * MB

one = tokens[:, :, :1]
until_it_fits(lambda: cache.append(one, one))
lengths = [n + 1 for n in lengths]
assert cache.lengths.tolist() == lengths
cache.truncate([n - 1 for n in lengths])
assert cache.attend(query).tobytes() == want
if fastattn.get_backend() != "numpy":  # a copy of the codes would have 4 MiB
    with fastattn.threads(1):
        allow(MB)
        assert cache.attend(query).tobytes() == want
print("done")
"""
)


@LINUX
def test_failed_growth_changes_nothing(backend, run_python):
    """Codes and scales of keys and of values are four arrays, each of which may be one too many."""
    settings = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = run_python(LIMITED, FASTATTN_BACKEND=backend, **settings)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done


def test_zero_sizes(backend, rng):
    """Cases 74 and 75: any size may be 0."""
    names = ("batch", "heads", "size", "value", "tokens", "queries")
    for sizes in itertools.product((0, 2), repeat=6):
        n = dict(zip(names, sizes))
        shape = (n["batch"], n["heads"], n["tokens"])
        k, v = (draw_tokens(rng, (*shape, n[size])) for size in ("size", "value"))
        cache = fastattn.KVCache(
            n["batch"], n["heads"], n["size"], value_head_size=n["value"], dtype="int8"
        )
        cache.append(k, v)
        cache.append(k[:, :, :0], v[:, :, :0])
        cache.reorder(np.arange(n["batch"])[::-1].copy())
        q = draw(rng, (n["batch"], 2 * n["heads"], n["queries"], n["size"]))
        end = max(cache.lengths, default=0)
        kept = (stored(x, np.int8)[::-1, :, :end] for x in (k, v))
        causal = {"is_causal": True, "q_offset": "lower_right"}
        got = cache.attend(q, scale=1.0, **EVERY)
        assert_results(got, expected(q, *kept, scale=1.0, **causal), context=str(n))
        cache.truncate(0)
        assert not cache.attend(q, scale=1.0).any()
