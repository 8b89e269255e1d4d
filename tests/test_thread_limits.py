# SPDX-License-Identifier: MIT
# Too little of something: no further threads, no address space, small stacks.
# Used by pytest on every backend; limits hold in child processes only.
# Errors of the user are tested in test_errors.py, memory use as such in test_memory.py.
"""Fewer threads or a clean MemoryError, and the right result; never an abort."""

import os
import sys

import pytest

import fastattn

LIMITS = pytest.mark.skipif(
    not sys.platform.startswith("linux") or "FASTATTN_TEST_SANITIZER" in os.environ,
    reason="needs limits that Linux enforces, and sanitizers cannot live with",
)

SCRIPT = """
import os, resource, sys, threading, time
import numpy as np
import fastattn
from children import check_calls, n_workers, run_threads, sdpa

compiled = fastattn.get_backend() != "numpy"

def limit(what, soft):
    resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))

def allow(extra):
    '''So many more bytes of address space; None: as many as the process was given.'''
    with open("/proc/self/statm") as numbers:
        now = int(numbers.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit(resource.RLIMIT_AS, hard if extra is None else now + extra)

def cache_scratch():
    '''A call by one thread with rows so long that its scratch serves many threads later on.'''
    with fastattn.threads(1):
        sdpa(*np.ones((3, 1, 1, 48, 30000), np.float32))

def threads_are_refused():
    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    except RuntimeError:
        return True
    return False
"""


def runner(run_python, backend):
    """run(code): run the common part and the code on a backend; returns what it prints."""

    def run(code, **environment):
        environment = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", **environment}
        done = run_python(
            f"{SCRIPT}{code}\nprint('done')", timeout=100, FASTATTN_BACKEND=backend, **environment
        )
        assert done.returncode == 0 and done.stdout.split()[-1:] == ["done"], done
        return done.stdout.split()[:-1]

    return run


@pytest.fixture
def child(backend, run_python):
    return runner(run_python, backend)


@pytest.fixture(params=[name for name in fastattn.backends() if name != "numpy"])
def pool_child(request, run_python):
    """For what concerns the pool, which NumPy's backend does not use."""
    return runner(run_python, request.param)


@LIMITS
def test_no_thread_can_be_created(child):
    """Cases 96 and 142: with RLIMIT_NPROC reached, calls run alone; later the pool grows again."""
    words = child("""
if os.getuid() == 0:  # whom the limit does not hold
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    except OSError:  # nobody else exists here
        pass
before = resource.getrlimit(resource.RLIMIT_NPROC)[0]
limit(resource.RLIMIT_NPROC, 1)
if not threads_are_refused():
    print("unlimited")
else:
    for _ in range(3):
        check_calls(8)
    assert n_workers() == 0
    limit(resource.RLIMIT_NPROC, before)
    if compiled:
        time.sleep(1.1)  # not every call asks the system again
        check_calls(8)
        assert n_workers() == 7, n_workers()
""")
    if words:
        pytest.skip("this system does not limit the number of threads")


@LIMITS
@pytest.mark.parametrize("stacks", [0, 3])
def test_no_address_space_for_stacks(pool_child, stacks):
    """Cases 96 and 142: RLIMIT_AS leaves room for no worker, or for fewer than asked for."""
    pool_child(f"""
cache_scratch()
allow(({stacks} << 20) + (600 << 10))
for _ in range(3):
    check_calls(16)
assert n_workers() <= {stacks}, n_workers()
assert n_workers() >= {stacks} - 2, n_workers()
""")


@LIMITS
def test_scratch_for_fewer_threads(pool_child):
    """Case 142: where the working sets of all threads do not fit, fewer threads do the work."""
    pool_child("""
from check import assert_bits_equal
q, k, v = np.random.default_rng(1).standard_normal((3, 16, 4, 100, 128), np.float32)
wanted = sdpa(q, k, v)
fastattn._native.pool_shutdown()
out = np.full(wanted.shape, np.nan, np.float32)
for room in (8 << 20, 4 << 20, 2 << 20):
    allow(room)
    try:
        with fastattn.threads(64):
            sdpa(q, k, v, out=out)
    finally:
        allow(None)
    assert_bits_equal(out, wanted)
    out[...] = np.nan
""")


@LIMITS
def test_out_is_untouched_after_a_memory_error(child, backend):
    """Case 120: a call without memory, in any thread, leaves `out` as it was and works later."""
    words = child("""
q, k, v = np.random.default_rng(1).standard_normal((3, 1, 2, 40, 40000), np.float32)
out = np.full(q.shape, 7.5, np.float32)
failed = []

def call():
    allow(4096)
    try:
        with fastattn.threads(4):
            sdpa(q, k, v, out=out)
    except MemoryError:
        failed.append(threading.get_ident())
    finally:
        allow(None)
    assert not failed or (out == 7.5).all()

# A thread that computes with NumPy first gets the buffers that its BLAS never gives back.
sdpa(q[..., :64], k[..., :64], v[..., :64])
call()
run_threads([call])
print(*failed)
out[...] = np.nan
sdpa(q, k, v, out=out)
assert not np.isnan(out).any()
check_calls(4)
""")
    assert backend == "numpy" or len(words) == 2, "the limit was never reached"


@pytest.mark.skipif(sys.platform == "win32", reason="scripts set limits of POSIX")
def test_small_stacks(pool_child):
    """Case 143: callers with small stacks, alone and with workers, long rows and many keys."""
    # AddressSanitizer gives every copy of an inlined array a place of its own on the stack.
    kib = 256 if os.environ.get("FASTATTN_TEST_SANITIZER") == "address" else 64
    pool_child(f"""
from check import assert_bits_equal
rng = np.random.default_rng(1)
options = dict(is_causal=True, q_offset="lower_right", softcap=3.0, return_lse=True,
               sinks=np.zeros(2), alibi_slopes=np.ones(2) / 100, window=(4000, 0))
for queries, keys, dim in ((1, 4096, 1024), (20, 600, 1024), (7, 33, 5)):
    q = rng.standard_normal((1, 2, queries, dim), np.float32)
    k, v = rng.standard_normal((2, 1, 1, keys, dim), np.float32)
    options["bias"] = rng.standard_normal((queries, keys))
    options["attn_mask"] = rng.random((queries, keys)) < 0.9
    wanted = sdpa(q, k, v, **options)
    plain = sdpa(q, k, v, return_weights=True)
    def call():
        for n_threads in (1, 4):
            with fastattn.threads(n_threads):
                for got, want in ((sdpa(q, k, v, **options), wanted),
                                  (sdpa(q, k, v, return_weights=True), plain)):
                    for one, other in zip(got, want):
                        assert_bits_equal(one, other)
    threading.stack_size({kib} << 10)
    run_threads([call])
    threading.stack_size(0)
""")


@pytest.mark.skipif(sys.platform == "win32", reason="scripts set limits of POSIX")
@pytest.mark.skipif(
    os.environ.get("FASTATTN_TEST_SANITIZER") == "address",
    reason="AddressSanitizer's frames are larger than those that ship: it gives every copy of an "
    "inlined array a place of its own",
)
def test_the_compiled_part_needs_little_stack(pool_child):
    """Case 143: checked calls, without Python's and NumPy's needs, in 32 KiB."""
    pool_child("""
from fastattn import _native

calls = []

class Recorder:
    def __getattr__(self, name):
        return getattr(_native, name)
    def sdpa(self, call, name, n_threads):
        calls.append((call, name))
        return _native.sdpa(call, name, n_threads)

fastattn._backend._native = Recorder()
rng = np.random.default_rng(1)
for queries, keys, dim in ((1, 4096, 1024), (20, 300, 1024)):
    q = rng.standard_normal((1, 2, queries, dim), np.float32)
    k, v = rng.standard_normal((2, 1, 1, keys, dim), np.float32)
    sdpa(q, k, v, window=(None, None))  # an option: the way on which a call can be recorded
    sdpa(q, k, v, bias=np.finfo(np.float32).min, return_weights=True)
assert len(calls) == 4

def call():
    for given, name in calls:
        for n_threads in (1, 4):
            _native.sdpa(given, name, n_threads)

threading.stack_size(32 << 10)
run_threads([call])
threading.stack_size(0)
""")
