# SPDX-License-Identifier: MIT
# Memory: nothing of size Sq x Sk, nothing kept by failed calls, clean failure without memory.
# Used by the suite, on every backend; what needs limits runs in child processes on Linux.
# Speed is not measured here.
"""Extra memory is of the order of tiles, and error paths give everything back."""

import gc
import os
import sys
import tracemalloc

import numpy as np
import pytest
from check import qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux") or "FASTATTN_TEST_SANITIZER" in os.environ,
    reason="needs /proc and limits of address space, which sanitizers cannot live with",
)

COMMON = """
import resource
import fastattn
import numpy as np

sdpa = fastattn.scaled_dot_product_attention

def virtual_bytes():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[0]) * resource.getpagesize()

def resident_kib():
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith("VmRSS"))

def allow(extra):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes() + extra if extra else hard, hard))
"""

EXPAND = (
    COMMON
    + """
heads, queries, keys, dim = 8, 32, 30000, 8
rng = np.random.default_rng(1)
q = rng.standard_normal((heads, queries, dim)).astype("f4")
k, v = (rng.standard_normal((1, keys, dim)).astype("f4") for _ in range(2))
masks = {
    "none": {},
    "causal": {"is_causal": True, "q_offset": "lower_right"},
    "bool": {"attn_mask": rng.random(keys) < 0.5},
    "float": {"attn_mask": rng.standard_normal(keys).astype("f4")},
    "half": {"attn_mask": rng.standard_normal((queries, 1)).astype("f2")},
    "double": {"bias": rng.standard_normal((heads, 1, keys))},
    "slopes": {"alibi_slopes": np.full(heads, 0.01)},
}
out = np.empty_like(q)
with fastattn.threads(1):
    for dtype in ("f4", "f8", "f2"):
        a, b, c = (x.astype(dtype) for x in (q, k, v))
        small = slice(0, 40)
        for name, options in masks.items():
            few = {n: x[..., small] if n in ("attn_mask", "bias") else x
                   for n, x in options.items()}
            sdpa(a, b[:, small], c[:, small], **few)
        allow(MEGABYTES << 20)
        result = np.empty(q.shape, dtype)
        for name, options in masks.items():
            try:
                sdpa(a, b, c, out=result, **options)
            except MemoryError:
                raise SystemExit(f"out of memory with {dtype} {name}")
        allow(0)
print("done")
"""
)


@LINUX
def test_scores_and_masks_are_never_expanded(backend, run_python):
    """Case 151: 7.7 million scores per call (29 MiB as float32) in 12 MiB of address space."""
    done = run_python(
        EXPAND.replace("MEGABYTES", "12"), FASTATTN_BACKEND=backend, OPENBLAS_NUM_THREADS="1",
        MALLOC_ARENA_MAX="1",
    )  # fmt: skip
    assert done.stdout.strip() == "done", done


@pytest.mark.parametrize("mask", ["bool", "float"])
def test_broadcast_operands_are_not_copied(backend, rng, mask):
    """Case 151: NumPy's own allocations stay far below an expanded mask, key or value."""
    q, k, v = qkv(rng, lead=(1,), heads=8, kv_heads=1, queries=64, keys=2000, dim=4, dv=4)
    q, k, v = (np.broadcast_to(x, (32, *x.shape[1:])) for x in (q, k, v))
    given = rng.random(2000) < 0.5 if mask == "bool" else rng.standard_normal(2000)
    out = np.empty((32, 8, 64, 4), np.float32)
    q, out = q[:2], out[:2]
    k, v = k[:2], v[:2]
    sdpa(q, k, v, given, out=out)
    tracemalloc.start()
    try:
        sdpa(q, k, v, given, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20, f"{peak} bytes; the mask expanded holds {2 * 8 * 64 * 2000}"


LEAK = (
    COMMON
    + """
import gc, sys
q, k, v = (np.ones((2, 3, 5, 4), "f4") for _ in range(3))
bias = np.ones((5, 5), "f4")
lengths = np.ones(2, int)
wrong = [
    dict(query=np.ones(3, "f4")),
    dict(key=np.ones((2, 3, 5, 4), "f8")),
    dict(attn_mask=np.ones((5, 6), bool)),
    dict(out=np.ones((2, 3, 5, 5), "f4")),
    dict(kv_lengths=np.full(2, 9)),
]
base = dict(query=q, key=k, value=v, bias=bias, kv_lengths=lengths, return_lse=True)
sdpa(**base)

def all_wrong(times):
    for case in wrong:
        call = base | case
        for _ in range(times):
            try:
                sdpa(**call)
            except (TypeError, ValueError):
                continue
            raise SystemExit(f"accepted {case}")

all_wrong(300)
gc.collect()
arrays = [q, k, v, bias, lengths, *(x for case in wrong for x in case.values())]
counts, before = [sys.getrefcount(x) for x in arrays], resident_kib()
all_wrong(TIMES)
gc.collect()
growth = resident_kib() - before
assert [sys.getrefcount(x) for x in arrays] == counts, "reference counts changed"
assert growth < 1024, f"grew by {growth} KiB"
for _ in range(TIMES):
    sdpa(**base)
assert resident_kib() - before < 1024
assert [sys.getrefcount(x) for x in arrays] == counts, "reference counts changed by good calls"
del base, arrays, wrong
# Refused while anything else refers to the array or holds its buffer.
q.resize(3), k.resize(3), v.resize(3), bias.resize(3), lengths.resize(3)
print("done")
"""
)


@LINUX
def test_failed_calls_leak_nothing(backend, run_python):
    """Case 120: thousands of failed calls of each kind; references and memory stay."""
    done = run_python(LEAK.replace("TIMES", "4000"), FASTATTN_BACKEND=backend)
    assert done.stdout.strip() == "done", done


def test_arguments_are_released(backend, rng):
    """Case 120: neither a good nor a bad call keeps a reference or a buffer export."""
    q, k, v = qkv(rng)
    mask = np.ones((5, 7), bool)
    out = np.empty((2, 3, 5, 6), np.float32)
    given = [q, k, v, mask, out]
    before = [sys.getrefcount(x) for x in given]
    for wrong in ({}, {"softcap": -1}, {"scale": "x"}, {"sinks": np.ones(5, np.float32)}):
        for _ in range(50):
            try:
                sdpa(q, k, v, mask, out=out, **wrong)
            except (TypeError, ValueError):
                assert wrong
    gc.collect()
    assert [sys.getrefcount(x) for x in given] == before


SCRATCH = (
    COMMON
    + """
rng = np.random.default_rng(1)
# The BLAS below NumPy aborts when it cannot get its own buffers, so it gets them first.
warm = rng.standard_normal((300, 300)).astype("f4") @ np.ones((300, 300), "f4")
# A packed tile of such long keys does not fit into what the heap has left.
shapes = [(1, 2, 50, 300, 10000), (1, 2, 1, 300, 10000), (2, 8, 1, 3000, 64)]
for b, h, sq, sk, d in shapes:
    q = rng.standard_normal((b, h, sq, d)).astype("f4")
    k = rng.standard_normal((b, 1, sk, d)).astype("f4")
    v = rng.standard_normal((b, 1, sk, 33)).astype("f4")
    out = np.full((b, h, sq, 33), 7.5, "f4")
    allow(4096)
    failed = False
    try:
        sdpa(q, k, v, out=out)
    except MemoryError:
        failed = True
    finally:
        allow(0)
    print(failed, end=" ")
    assert not failed or (out == 7.5).all(), "out was written"
    sdpa(q, k, v, out=out)
    with fastattn.use_backend("numpy"):
        np.testing.assert_allclose(out, sdpa(q, k, v), atol=1e-4)
print("done")
"""
)


@LINUX
def test_scratch_failure(backend, run_python):
    """Case 120: without memory for scratch, MemoryError or a right result, and a clean retry."""
    done = run_python(
        SCRATCH, FASTATTN_BACKEND=backend, OPENBLAS_NUM_THREADS="1", FASTATTN_NUM_THREADS="2"
    )
    *failed, last = done.stdout.split()
    assert last == "done" and done.returncode == 0, done
    assert backend == "numpy" or "True" in failed, (
        "the limit was never reached, so nothing was tested"
    )


SHARED_PREFIX = (
    COMMON
    + """
def peak_kib():
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM"))

entries, keys, size = 31, 32768, 256
q = np.ones((entries, 8, 1, 16), "f4")
k = np.broadcast_to(np.ones((1, 1, keys, 16), "f4"), (entries, 1, keys, 16))
v = np.broadcast_to(np.ones((1, 1, keys, size), "f4"), (entries, 1, keys, size))
out = np.zeros((entries, 8, 1, size), "f4")
with fastattn.threads(1):
    CALL(q[:1], k[:1], v[:1], out=out[:1])
    before = peak_kib()
    CALL(q, k, v, out=out)
print(peak_kib() - before)
"""
)


@LINUX
@pytest.mark.parametrize("name", [name for name in fastattn.backends() if name != "numpy"])
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_states_of_split_keys_are_limited(name, score, run_python):
    """A long shared prefix: states of all pieces of all entries would take 16 MiB."""
    call = "def CALL(*a, **o): fastattn.additive_attention(*a, np.ones(16, 'f4'), **o)\n"
    code = SHARED_PREFIX.replace("CALL", "sdpa") if score == "dot" else call + SHARED_PREFIX
    done = run_python(code, FASTATTN_BACKEND=name)
    assert int(done.stdout) < 8 << 10, done
