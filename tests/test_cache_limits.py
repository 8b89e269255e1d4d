# SPDX-License-Identifier: MIT
# KVCache: scarce memory, empty sizes, and dtypes by name.
# Used by the suite, on every backend where something is computed; limits of memory on Linux.
# Wrong calls are in test_cache_errors.py.
"""What is at the edge of what a cache can be."""

import itertools
import tracemalloc

import numpy as np
import pytest
from check import draw, expected
from check_cache import EVERY, assert_results, cache_for
from test_memory import COMMON, LINUX

import fastattn

LIMITED = (
    COMMON
    + """
MB = 1 << 20
tokens = np.ones((4, 1, 1 << 16, 16), "f4")  # 16 MiB, a quarter of it an entry
cache = fastattn.KVCache(4, 1, 16)
cache.append(tokens, tokens)
cache.truncate([1 << 16, 1 << 16, 5, 9])
query = np.ones((4, 1, 1, 16), "f4")
want = cache.attend(query).tobytes()
allow(0)

def fails(call, extra):
    allow(extra)
    try:
        call()
    except MemoryError:
        pass
    else:
        raise SystemExit("there was enough memory")
    finally:
        allow(0)
    assert cache.lengths.tolist() == [1 << 16, 1 << 16, 5, 9]
    assert cache.capacity == 1 << 16
    assert cache.attend(query).tobytes() == want

one = tokens[:, :, :1]
fails(lambda: cache.append(one, one), 8 * MB)  # keys cannot grow
fails(lambda: cache.append(one, one), 40 * MB)  # keys can grow, values cannot
fails(lambda: cache.reorder([1, 0, 3, 2]), 4 * MB)
fails(lambda: cache.reorder([1, 0, 3, 2]), 20 * MB)  # a copy of the keys, but none of the values
cache.append(one, one)
cache.reorder([1, 0, 3, 2])
assert cache.lengths.tolist() == [65537, 65537, 10, 6]
print("done")
"""
)


@LINUX
def test_failed_growth_and_failed_moves_change_nothing(run_python):
    done = run_python(LIMITED, OPENBLAS_NUM_THREADS="1", MALLOC_ARENA_MAX="1")
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attend_copies_nothing(rng, dtype):
    """Neither keys nor values, for equal and for different lengths, and for both kinds of query."""
    if fastattn.get_backend() == "numpy":
        pytest.skip("NumPy converts what it reads")
    k = np.broadcast_to(np.ones((), dtype), (2, 2, 20_000, 16))
    queries = [draw(rng, (2, 4, 1, 16), kind) for kind in {dtype, "float32"}]
    cache = cache_for(k, k)
    for lengths in ([20_000, 20_000], [20_000, 3]):
        cache.reset()
        cache.append(k, k, lengths=lengths)
        for query in queries:
            cache.attend(query)
            tracemalloc.start()
            cache.attend(query)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 100_000  # the keys of one head have 640,000 bytes or more


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_zero_sizes(backend, rng, kind):
    """Cases 74 and 75: any size may be 0; float32 queries over both kinds of cache."""
    names = ("batch", "heads", "size", "value", "tokens", "queries")
    for sizes in itertools.product((0, 2), repeat=6):
        n = dict(zip(names, sizes))
        shape = (n["batch"], n["heads"], n["tokens"])
        k, v = (draw(rng, (*shape, n[size]), kind) for size in ("size", "value"))
        cache = cache_for(k, v)
        cache.append(k, v)
        cache.append(k[:, :, :0], v[:, :, :0])
        cache.reorder(np.arange(n["batch"])[::-1].copy())
        q = draw(rng, (n["batch"], 2 * n["heads"], n["queries"], n["size"]))
        end = max(cache.lengths, default=0)  # without entries there is no longest one
        k, v = k[::-1, :, :end], v[::-1, :, :end]
        causal = {"is_causal": True, "q_offset": "lower_right"}
        got = cache.attend(q, scale=1.0, **EVERY)
        assert_results(got, expected(q, k, v, scale=1.0, **causal))
        if n["size"] == 0:
            with pytest.raises(ValueError, match="^query"):
                cache.attend(q)
        assert cache.lengths.tolist() == [n["tokens"]] * n["batch"]
        cache.truncate(0)
        cache.reset()
        assert not cache.attend(q, scale=1.0).any()
        if n["heads"] == 0:
            with pytest.raises(ValueError, match="^query: expected a number of heads"):
                cache.attend(draw(rng, (n["batch"], 2, 1, n["size"])), scale=1.0)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "f2", ">f4", np.float32, float])
def test_dtypes_by_name(name):
    cache = fastattn.KVCache(1, 1, 2, dtype=name)
    assert cache.dtype is np.dtype(np.dtype(name).type) and cache.dtype.isnative


def test_bfloat16_by_name(run_python):
    """The package that has it is loaded when it is asked for, and missed only then."""
    done = run_python("""
import sys
import fastattn
fastattn.KVCache(1, 1, 2, dtype="float16")
assert "ml_dtypes" not in sys.modules
package = sys.modules.pop("ml_dtypes", None)
sys.modules["ml_dtypes"] = None
try:
    fastattn.KVCache(1, 1, 2, dtype="bfloat16")
except ImportError as error:
    print(error)
del sys.modules["ml_dtypes"]
try:
    import ml_dtypes
except ImportError:
    sys.exit()
for name in ("bfloat16", ml_dtypes.bfloat16):
    assert fastattn.KVCache(1, 1, 2, dtype=name).dtype == ml_dtypes.bfloat16
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "dtype: 'bfloat16' needs the package ml_dtypes"
