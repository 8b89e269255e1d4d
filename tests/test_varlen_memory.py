# SPDX-License-Identifier: MIT
# varlen_attention: no padding, no copies, nothing read or written outside of the sequences.
# Used by the suite, on every backend; forbidden pages and memory limits need Linux.
# Speed is not measured here.
"""Extra memory does not depend on the longest sequence times their number, nor on the tails."""

import sys
import tracemalloc

import numpy as np
import pytest
from check import draw
from check_varlen import assert_same, cumulated, packed
from test_big_offsets import spread
from test_memory import COMMON, LINUX

import fastattn

varlen = fastattn.varlen_attention
F = np.float32
LOWER = {"is_causal": True, "q_offset": "lower_right"}
COMPILED = [name for name in fastattn.backends() if name != "numpy"]


def peak_of(*args, **options):
    """Bytes that Python and NumPy allocate at most during the call."""
    tracemalloc.start()
    try:
        varlen(*args, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_nothing_is_padded(backend, rng, dtype):
    """101 sequences padded to 20000 keys: 123 MiB in float32, an int64 for each is 15 MiB."""
    pairs = [(1, 1)] * 50 + [(15, 20000)] + [(2, 1)] * 50
    q, k, v, cu_q, cu_k = packed(rng, dtype, pairs, heads=2, kv_heads=1, dim=16, dv=8)
    peak = peak_of(q, k, v, cu_q, cu_k, alibi_slopes=np.full((101, 2), 0.01), **LOWER)
    assert peak < 12 << 20, f"{peak} bytes"


@pytest.mark.parametrize("name", COMPILED)
def test_packed_keys_are_not_copied(name, rng, dtype):
    """Views of one (tokens, 2, heads, size) array are read where they lie."""
    cu_q, cu_k = cumulated([1] * 128), cumulated([32] * 128)
    q, kv = draw(rng, (128, 2, 32), dtype), draw(rng, (4096, 2, 1, 32), dtype)
    with fastattn.use_backend(name):
        varlen(q, kv[:, 0], kv[:, 1], cu_q, cu_k)
        peak = peak_of(q, kv[:, 0], kv[:, 1], cu_q, cu_k, return_lse=True)
    assert peak < kv.nbytes // 4, f"{peak} bytes; keys and values hold {kv.nbytes}"


def test_tails_of_keys_cost_nothing(backend, dtype):
    """Neither a copy of what no kernel could read in place, nor a conversion: 16 MiB and more."""
    q, cu = np.ones((5, 2, 16), dtype), [0, 2, 5]
    k = np.zeros((1 << 17, 2, 32), dtype)[..., ::2]
    for given in (k, k[..., :8].swapaxes(1, 2)[:, :2, ::-1], np.zeros((1 << 17, 2, 16), dtype)):
        one = q[..., : given.shape[2]]
        peak = peak_of(one, given, given, cu, cu, **LOWER)
        assert peak < 1 << 20, f"{peak} bytes"
    if dtype.kind == "f":
        other = np.zeros((1 << 17, 2, 16), dtype.newbyteorder())
        assert peak_of(q, other, other, cu, cu) < 1 << 20


LIMITED = (
    COMMON
    + """
def batch(pairs, heads, dim):
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(n)]) for n in zip(*pairs))
    q, k, v = (np.ones((n, heads, dim), "f4") for n in (cu_q[-1], cu_k[-1], cu_k[-1]))
    return q, k, v, cu_q, cu_k

# The BLAS below NumPy aborts when it cannot get its own buffers, so it gets them first.
warm = np.ones((300, 300), "f4") @ np.ones((300, 300), "f4")
few = batch([(1, 1), (100, 500)], 2, 16)
many = batch([(1, 1)] * 400 + [(100, 4096)] + [(2, 3)] * 400, 2, 16)
out = np.full(many[0].shape, 7.5, "f4")
with fastattn.threads(1):
    for options in ({}, {"is_causal": True, "q_offset": "lower_right"}):
        fastattn.varlen_attention(*few, **options)
        allow(24 << 20)
        try:
            fastattn.varlen_attention(*many, out=out, **options)
        except MemoryError:
            raise SystemExit(f"out of memory with {options}")
        allow(0)
assert abs(out - 1).max() < 1e-3

# A packed tile of such long keys does not fit into what the heap has left.
large = batch([(1, 2), (20, 300), (1, 900)], 1, 10000)
out = np.full(large[0].shape, 7.5, "f4")
failed = False
allow(4096)
try:
    fastattn.varlen_attention(*large, out=out)
except MemoryError:
    failed = True
finally:
    allow(0)
assert failed or fastattn.get_backend() == "numpy", "never short of memory: nothing was tested"
assert not failed or (out == 7.5).all(), "out was written"
fastattn.varlen_attention(*large, out=out)
assert abs(out - 1).max() < 1e-3
print("done")
"""
)


@LINUX
def test_little_memory(backend, run_python):
    """200 MiB of padded keys in 24 MiB of address space; without any, a clean MemoryError."""
    settings = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = run_python(LIMITED, FASTATTN_BACKEND=backend, **settings)
    assert done.stdout.strip() == "done", done


FENCED = """
import numpy as np
import fastattn
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal
from check_varlen import packed
from guard import after_fence, before_fence

varlen = fastattn.varlen_attention
rng = np.random.default_rng(3)

def with_tail(x, n_tail):
    # as many tokens more, the first of which lies on the forbidden page
    shape = (len(x) + n_tail, *x.shape[1:])
    return np.lib.stride_tricks.as_strided(before_fence(x), shape, x.strides)

mixes = [
    [(3, 5), (0, 2), (2, 1)],
    [(1, KEY_CHUNK + 1), (3, 9), (1, 3)],
    [(QUERY_BLOCK + 1, KEY_TILE + 1), (2, 2), (QUERY_BLOCK, 7)],
    [(1, 1), (5, 0), (QUERY_BLOCK + 3, 33)],
]
for dtype in ("f4", "f8", "f2"):
    for pairs in mixes:
        q, k, v, *cu = packed(rng, dtype, pairs, dim=5, dv=3, tails=(0, 0))
        n = len(pairs)
        options = {
            "q_offset": np.array([k - q for q, k in pairs]), "is_causal": True,
            "alibi_slopes": rng.random((n, 4)).astype("f4"), "sinks": rng.random(4).astype("f4"),
        }
        wanted, _ = varlen(q, k, v, *cu, return_lse=True, **options)
        for fence in (before_fence, after_fence):
            out = fence(np.full(wanted.shape, np.nan, dtype))
            own = {name: fence(x) if name != "is_causal" else x for name, x in options.items()}
            varlen(*map(fence, (q, k, v, *cu)), out=out, **own)
            assert_bits_equal(out, wanted, f"{pairs} {fence}")
        got = varlen(q, with_tail(k, 9), with_tail(v, 9), *cu, **options)
        assert_bits_equal(got, wanted, f"{pairs} tail")
print("done")
"""


@LINUX
@pytest.mark.parametrize("name", COMPILED)
def test_forbidden_pages(name, run_python):
    """Cases 58, 79: around every argument, and in the place of the keys past the last sequence."""
    done = run_python(FENCED, FASTATTN_BACKEND=name)
    assert done.stdout.strip() == "done", done


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory reserved without being there")
@pytest.mark.parametrize("axis", [0, 1], ids=["token", "head"])
@pytest.mark.parametrize("dim", [8, 32])
def test_strides_beyond_32_bits(backend, rng, axis, dim):
    """Case 93: a token's number times its stride, in every operand."""
    q, k, v = (draw(rng, (3, 2, dim)) for _ in range(3))
    cu = ([0, 1, 3], [0, 2, 3])
    wanted = varlen(q, k, v, *cu)
    out = spread(np.full_like(q, np.nan), axis)
    assert varlen(*(spread(x, axis) for x in (q, k, v)), *cu, out=out) is out
    assert_same(backend, out, wanted)


def test_arguments_are_released(backend, rng):
    """Case 120: neither a good nor a bad call keeps a reference."""
    given = list(packed(rng, F, [(3, 4), (2, 5)]))
    out = np.empty((7, 4, 6), F)
    counts = [sys.getrefcount(x) for x in [*given, out]]
    for wrong in ({}, {"softcap": -1}, {"sinks": np.ones(5, F)}, {"q_offset": [1, 2, 3]}):
        for _ in range(30):
            try:
                varlen(*given, out=out, return_lse=True, **wrong)
            except (TypeError, ValueError):
                assert wrong
    assert [sys.getrefcount(x) for x in [*given, out]] == counts
