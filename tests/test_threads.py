# SPDX-License-Identifier: MIT
# Threads that call, and threads that help: how many, who shares them, races, idleness.
# Used by pytest on every backend; what counts threads or CPU time runs in child processes.
# Settings are tested in test_thread_settings.py, limits of the system in test_thread_limits.py.
"""Many callers share one pool, which is as large as asked for, and quiet when nobody calls."""

import contextvars
import sys
import threading

import numpy as np
import pytest
from cases import EXHAUSTIVE, KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import fastattn
from children import (
    SANITIZED, check_calls, endless, fork, n_workers, run_threads, sdpa, status_of, workers
)
"""


def test_as_many_workers_as_asked_for(pool_script):
    """Case 96: n threads are the caller and n - 1 workers, started by the first call in need."""
    pool_script("""
calls = np.ones((3, 2, 8, 300, 64), np.float32)
assert n_workers() == 0
for n, wanted in ((1, 0), (2, 1), (4, 3), (3, 3), (6, 5)):
    with fastattn.threads(n):
        sdpa(*calls)
    assert n_workers() == wanted, (n, n_workers())
fastattn.set_num_threads(8)
with fastattn.threads(2):
    sdpa(*calls)
assert n_workers() == 5
with fastattn.threads(257):
    assert (sdpa(*np.ones((3, 40, 8, 64, 32), np.float32)) == 1).all()
assert 5 < n_workers() <= 256
""")


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7, 32, 64, 257, 1024])
def test_any_number_of_threads_gives_the_same_bits(backend, rng, n_threads):
    """Cases 96 and 97: few rows or few heads, and far more threads than CPUs or tasks."""
    shapes = [
        {"heads": 1, "queries": 2, "keys": KEY_CHUNK + 1},
        {"heads": 2, "queries": 3, "keys": 3},
        {"heads": 4, "kv_heads": 2, "queries": 4 * QUERY_BLOCK + 1, "keys": KEY_TILE + 1},
    ]
    for shape in shapes:
        q, k, v = qkv(rng, lead=(1,), dim=16, dv=9, **shape)
        with fastattn.threads(1):
            wanted = sdpa(q, k, v)
        out = np.full(wanted.shape, np.nan, np.float32)
        with fastattn.threads(n_threads):
            sdpa(q, k, v, out=out)
        assert_bits_equal(out, wanted, f"{n_threads} threads, {shape}")


@LINUX
def test_many_callers_share_one_pool(pool_script):
    """Case 138: no caller brings threads of its own, and callers that end leave nothing behind."""
    pool_script(
        """
from concurrent.futures import ThreadPoolExecutor

def resident_mib():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

def natives():
    return len(os.listdir("/proc/self/task"))

def at_most():
    return threading.active_count() + 3 + SANITIZED  # which may have a thread of its own

fastattn.set_num_threads(4)
q, k, v = np.random.default_rng(1).standard_normal((3, 2, 5, 80, 32), np.float32)
wanted = sdpa(q, k, v).tobytes()

def call():
    assert sdpa(q, k, v).tobytes() == wanted
    found = len(workers())
    assert found <= 3, f"{found} workers"

with ThreadPoolExecutor(32) as executor:
    for _ in range(10):
        for done in [executor.submit(call) for _ in range(32)]:
            done.result()
        assert natives() <= at_most(), (natives(), at_most())
before = resident_mib()
for _ in range(20):
    run_threads([call] * 10)
assert resident_mib() - before < 8 or SANITIZED, (before, resident_mib())
for _ in range(100):  # the last threads need a moment to leave
    if natives() <= at_most():
        break
    time.sleep(0.02)
assert natives() <= at_most(), (natives(), at_most())
assert len(workers()) == n_workers() == 3
""",
        MALLOC_ARENA_MAX="2",
    )


def test_an_idle_pool_uses_no_cpu(pool_script):
    """Case 140: after a call the workers sleep; the process uses under 1 % of a core."""
    pool_script("""
check_calls(4)
shares = []
while not shares or (min(shares) >= 0.01 and len(shares) < 3):
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(1)
    shares.append((time.process_time() - cpu) / (time.monotonic() - wall))
assert min(shares) < 0.01, shares
""")


def test_the_gil_is_free_during_a_call(pool_script):
    """Case 146: another thread counts milliseconds while a call of minutes runs, then ends it.

    A call that let others run only when it asks for signals would take 50 ms for each of them.
    """
    pool_script("""
signal.signal(signal.SIGINT, signal.default_int_handler)
took = []

def count():
    time.sleep(0.1)
    begin = time.monotonic()
    for _ in range(200):
        time.sleep(0.001)
    took.append(time.monotonic() - begin)
    os.kill(os.getpid(), signal.SIGINT)

for n_threads in (1, 4):
    threading.Thread(target=count, daemon=True).start()
    try:
        with fastattn.threads(n_threads):
            sdpa(**endless("prefill"))
    except KeyboardInterrupt:
        pass
assert max(took) < 5, took
""")  # fmt: skip


def test_first_calls_race(pool_script):
    """Case 149: sixteen threads make the first call of their process at the same time."""
    # Only the first call of a process is of interest; forked copies are cheap new processes.
    pool_script(f"""
def race():
    start = threading.Barrier(16)
    def go(n_threads):
        start.wait(20)
        check_calls(n_threads)
    run_threads([lambda n=n: go(n) for n in (1, 2, 3, 4) * 4])
    assert n_workers() <= 3

if hasattr(os, "fork"):
    for _ in range({100 if EXHAUSTIVE else 6}):
        assert status_of(fork(race)) == 0
race()
""")


def test_concurrent_calls_with_helpers(backend, rng):
    """Case 147: eight callers with shapes, options and thread counts of their own."""
    jobs = []
    for i in range(8):
        queries, keys = (1, 2 * KEY_CHUNK + 100 * i) if i % 2 else (1 + 11 * i, 90 + 31 * i)
        given = qkv(
            rng, lead=(1 + i % 3,), heads=2 + i % 4, queries=queries, keys=keys,
            dim=8 + 3 * i, dv=5 + i,
        )  # fmt: skip
        options = [{}, {"is_causal": True, "q_offset": "lower_right"}, {"softcap": 2.0}][i % 3]
        with fastattn.threads(1):
            jobs.append((given, options, sdpa(*given, return_lse=True, **options)))
    failures = []

    def work(i):
        try:
            given, options, wanted = jobs[i]
            out = np.empty_like(wanted[0])
            for turn in range(100 if EXHAUSTIVE else 25):
                out[...] = np.nan
                with fastattn.threads(1 + (i + turn) % 5):
                    _, lse = sdpa(*given, return_lse=True, out=out, **options)
                assert_bits_equal(out, wanted[0], f"caller {i}")
                assert_bits_equal(lse, wanted[1], f"caller {i}")
        except BaseException as error:
            failures.append(error)

    callers = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, i)) for i in range(8)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures, failures[0]


def test_more_callers_than_the_pool_can_note(pool_script):
    """Case 147: a hundred calls in flight; those beyond what the pool notes run alone."""
    pool_script("""
start = threading.Barrier(100)

def call():
    start.wait(30)
    check_calls(3)

run_threads([call] * 100)
assert n_workers() == 2
""")


def test_the_pool_may_end_at_any_time(pool_script):
    """Workers end while calls are in flight; the calls do not suffer, and new ones start."""
    pool_script("""
stop = threading.Event()

def compute():
    while not stop.is_set():
        check_calls(4)

def end_often():
    for _ in range(50):
        fastattn._native.pool_shutdown()
        time.sleep(0.002)
    stop.set()

run_threads([compute] * 3 + [end_often] * 2)
check_calls(4)
assert n_workers() == 3
""")
