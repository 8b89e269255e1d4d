# SPDX-License-Identifier: MIT
# PagedKVCache: scarce memory, no copies, offsets beyond 32 bits, references.
# Used by the suite, on every backend; limits of memory on Linux.
# Too few pages, which have nothing to do with memory, are in test_paged_pages.py.
"""Without memory a call changes nothing; with a little, attend works, for it copies nothing."""

import sys
import tracemalloc

import numpy as np
import pytest
from check import accumulator, draw
from check_int8 import as_dtypes
from check_paged import Tracked
from test_memory import COMMON, LINUX

import fastattn

F = np.float32
COMPILED = [name for name in fastattn.backends() if name != "numpy"]
SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
THREE = [("float32",) * 3, ("float16", "float16", "float32"), ("int8", "float32", "float32")]

LIMITED = (
    COMMON
    + """
import copy, pickle
MB = 1 << 20

def fails(call, extra):
    allow(extra)
    try:
        call()
    except MemoryError:
        return True
    finally:
        allow(0)
    return False

new = lambda n_pages: fastattn.PagedKVCache(n_pages, 64, 1, 16, dtype=DTYPE)
tokens = np.ones((1 << 17, 1, 16), "f4")
query, few = tokens[:2].repeat(2, axis=1), tokens[:9]
assert fails(lambda: new(1 << 15), 8 * MB), "there was enough memory for all pages"
cache = new(1 << 13)  # for four times as many tokens
a, b = cache.add_sequence(), cache.add_sequence()
cache.append([a, b], tokens[: 70], tokens[: 70])
cache.attend([a, b], query)
cache.append(a, tokens, tokens)

def state():
    out, lse = cache.attend([a, b], query, return_lse=True)
    return out.tobytes(), lse.tobytes(), cache.lengths([a, b]).tolist(), cache.num_free_pages

want = state()
for name, call in COPIES:
    assert fails(lambda: call(cache), 2 * MB), f"there was enough memory for a {name}"
    assert state() == want
# Tokens that have to be converted: all of them or none.
other = np.ones((1 << 17, 2, 16), tokens.dtype.newbyteorder())[:, ::2]
extra = 0
while fails(lambda: cache.append(b, other, other), extra + 4096):
    assert state() == want
    extra += 3 * MB
    assert extra < 100 * MB
assert cache.lengths([a, b]).tolist() == [(1 << 17) + 35] * 2
out = cache.attend([a, b], query)
assert abs(out.astype("f4") - 1).max() < 1e-2
# Nor does attend take memory for a copy, on the compiled backends: their keys hold 2 MiB or more.
if fastattn.get_backend() != "numpy":
    with fastattn.threads(1):
        assert not fails(lambda: cache.attend([a, b, a], tokens[:3].repeat(2, axis=1)), MB)
print("done")
"""
)


@LINUX
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_little_memory(backend, run_python, dtype):
    """A failed call changes nothing, whatever it could not get."""
    copies = "[('deepcopy', copy.deepcopy), ('pickle', pickle.dumps)]"
    code = LIMITED.replace("DTYPE", repr(dtype)).replace("COPIES", copies)
    done = run_python(code, FASTATTN_BACKEND=backend, **SETTINGS)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done


SCRATCH = (
    COMMON
    + """
# A packed tile of such long keys does not fit into what the heap has left.
cache = fastattn.PagedKVCache(90, 16, 1, 10000, dtype=DTYPE)
ids = [cache.add_sequence() for _ in range(2)]
tokens = np.ones((1200, 1, 10000), "f4")
cache.append(ids, tokens, tokens, cu_seqlens=[0, 300, 1200])
query, out = np.ones((40, 1, 10000), "f4"), np.full((40, 1, 10000), 7.5, "f4")
warm = np.ones((300, 300), "f4") @ np.ones((300, 300), "f4")
failed, cu = False, [0, 39, 40]
allow(4096)
try:
    cache.attend(ids, query, cu_seqlens_q=cu, out=out)
except MemoryError:
    failed = True
finally:
    allow(0)
assert failed or fastattn.get_backend() == "numpy", "never short of memory: nothing was tested"
assert not failed or (out == 7.5).all(), "out was written"
assert cache.attend(ids, query, cu_seqlens_q=cu, out=out) is out
assert abs(out - 1).max() < 1e-3
print("done")
"""
)


@LINUX
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_scratch_failure(backend, run_python, dtype):
    """Case 120: MemoryError, an untouched out and a clean retry."""
    code = SCRATCH.replace("DTYPE", repr(dtype))
    done = run_python(code, FASTATTN_BACKEND=backend, FASTATTN_NUM_THREADS="2", **SETTINGS)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("names", THREE, ids="-".join)
def test_attend_copies_nothing(name, rng, names):
    """Neither keys nor values, for one query a sequence and for many."""
    dtype, given, query = as_dtypes(names)
    cache = fastattn.PagedKVCache(2504, 16, 2, 16, dtype=dtype)
    ids = [cache.add_sequence() for _ in range(2)]
    tokens = np.broadcast_to(np.ones((), given), (40_000, 2, 16))
    cache.append(ids, tokens, tokens)
    with fastattn.use_backend(name):
        for n in (2, 40):
            q = draw(rng, (n, 4, 16), query)
            cache.attend(ids, q)
            tracemalloc.start()
            try:
                cache.attend(ids, q)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 200_000  # the keys of one head of one sequence have 320,000 or more


FAR = """
import ctypes
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages: nearly all of this is never touched
import numpy as np
import fastattn
from check import assert_close

n, size = 8200, 256
try:
    cache = fastattn.PagedKVCache(n, 1024, 1, size, dtype="int8")
except MemoryError:
    print("done")
    raise SystemExit
rng = np.random.default_rng(11)
key, value = (rng.integers(-127, 128, (n, 1, size)).astype("f4") for _ in range(2))
key[..., 7] = value[..., 9] = 127  # so that the scale is 1
ids = [cache.add_sequence() for _ in range(n)]
cache.append(ids, key, value)
assert cache.num_free_pages == 0
query = rng.standard_normal(key.shape).astype("f4")
scores = (query.astype(float) * key).sum(axis=-1).T / 127
for name in fastattn.backends():
    with fastattn.use_backend(name):
        out, lse = cache.attend(ids, query, return_lse=True, scale=1 / 127)
    assert_close(out, value.astype(float), size=127, context=name)
    assert_close(lse, scores, slack=abs(query).max() * size * 2.0**-20, context=name)
print("done")
"""


@LINUX
def test_pages_beyond_32_bits(run_python):
    """Case 93: a page's number times its size, where there are 2.15e9 elements of keys."""
    done = run_python(FAR, NUMPY_MADVISE_HUGEPAGE="0")
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done


def test_arguments_are_released(backend, rng, kind):
    """Case 120: neither a good nor a bad call keeps a reference."""
    tracked = Tracked(kind, 40, 4)
    ids = tracked.filled(rng, 5, 3)
    key, value = tracked.draw(rng, 2)
    query, out = tracked.queries(rng, 2), np.empty((2, 4, 7), kind[2])
    arrays = [key, value, query, out, np.array(ids)]
    counts = [sys.getrefcount(x) for x in arrays]
    for wrong in ({}, {"softcap": -1}, {"sinks": np.ones(5, F)}, {"cu_seqlens_q": [0, 3, 2]}):
        for _ in range(20):
            tracked.cache.append(arrays[4], key, value)
            tracked.cache.truncate(ids, [5, 3])
            try:
                _, lse = tracked.cache.attend(arrays[4], query, out=out, return_lse=True, **wrong)
            except (TypeError, ValueError):
                assert wrong
            else:
                assert lse.dtype == accumulator(query.dtype)
            try:
                tracked.cache.append(arrays[4], key, value[:1])
            except ValueError:
                pass
    assert [sys.getrefcount(x) for x in arrays] == counts
