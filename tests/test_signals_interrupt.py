# SPDX-License-Identifier: MIT
# Ctrl-C during calls.
# Used by pytest on every backend, in child processes that send signals to themselves.
# Other signals are the matter of test_signals.py, what ends the process that of test_exit.py.
"""KeyboardInterrupt leaves a call half a second after the signal, and the pool works on."""

import os
import sys

import pytest
from cases import EXHAUSTIVE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
FORK = pytest.mark.skipif(
    os.environ.get("FASTATTN_TEST_SANITIZER") == "thread",
    reason="ThreadSanitizer loses count of the threads of forked processes",
)

SCRIPT = """
import gc, signal, sys, threading, time, weakref
import numpy as np
import fastattn
from children import (
    check_calls, endless, fork, interrupt, n_workers, run_threads, sdpa, status_of
)

compiled = fastattn.get_backend() != "numpy"
"""


KINDS = ["prefill", "decode", "decode of many heads", "weights", "careful", "careful, large"]


def test_interrupt(script, backend):
    """Case 144: Ctrl-C in a call of minutes, whatever it is doing; the pool is as before."""
    script(f"""
for kind in {KINDS if backend != "numpy" else ["numpy"]}:
    for n_threads in (1, 4):
        with fastattn.threads(n_threads):
            interrupt(lambda: sdpa(**endless(kind)), kind, 0.3 if "careful" in kind else 0.12)
        check_calls(n_threads)
assert n_workers() == (3 if compiled else 0)
""")


def test_interrupt_of_other_attentions(script):
    """Case 144: the same in every other function; drawing keys walks twice."""
    script("""
given = endless("prefill")
q, k, v = given["query"], given["key"], given["value"]
centers = np.broadcast_to(np.float64(k.shape[-2] / 2), q.shape[-2:-1])
calls = {
    "additive": lambda: fastattn.additive_attention(q, k, v, np.ones(q.shape[-1])),
    "local": lambda: fastattn.local_attention(q, k, v, centers=centers, half_width=1e9, sigma=1e9),
    "hard": lambda: fastattn.hard_attention(q, k, v),
    "drawn": lambda: fastattn.hard_attention(q, k, v, sample=np.random.default_rng(0)),
    "packed": lambda: fastattn.varlen_attention(
        *(x[0].swapaxes(0, 1) for x in (q, k, v)), [0, q.shape[2]], [0, k.shape[2]]
    ),
}
for kind, call in calls.items():
    for n_threads in (1, 4):
        with fastattn.threads(n_threads):
            interrupt(call, kind, 0.3)
    check_calls(4)
""")


def test_interrupted_calls_release_everything(script):
    """Case 144: arguments and `out` of an interrupted call are free afterwards."""
    script("""
given = endless("prefill")
given["out"] = np.empty((*given["query"].shape[:-1], given["value"].shape[-1]), np.float32)
counts = {name: sys.getrefcount(x) for name, x in given.items()}
with fastattn.threads(4):
    interrupt(lambda: sdpa(**given))
assert {name: sys.getrefcount(x) for name, x in given.items()} == counts
released = weakref.ref(given.pop("out"))
gc.collect()
assert released() is None
""")


def test_other_callers_go_on(pool_script):
    """Case 144: Ctrl-C stops the main thread's call and no call of other threads."""
    pool_script("""
stop = threading.Event()

def compute():
    while not stop.is_set():
        check_calls(3)

others = threading.Thread(target=run_threads, args=([compute] * 3,))
others.start()
try:
    for kind in ("prefill", "decode"):
        with fastattn.threads(4):
            interrupt(lambda: sdpa(**endless(kind)), kind)
finally:
    stop.set()
    others.join()
check_calls(4)
""")


def test_interrupt_while_another_thread_computes(pool_script):
    """Case 144: a long call outside of the main thread delays nothing, and ends by itself."""
    pool_script("""
rng = np.random.default_rng(1)
q, k, v = rng.standard_normal((3, 2, 2, 400, 64), np.float32)
begin = time.perf_counter()
wanted = sdpa(q, k, v)
repeats = int(0.5 / (time.perf_counter() - begin)) + 1
q, k, v = (np.broadcast_to(x[:, None], (2, repeats, 2, 400, 64)) for x in (q, k, v))
results = []

def compute():
    with fastattn.threads(4):
        results.append(sdpa(q, k, v))

caller = threading.Thread(target=compute)
caller.start()
interrupt(lambda: time.sleep(100))
caller.join(60)
assert (results[0] == wanted[:, None]).all()
check_calls(4)
""")


@FORK
def test_interrupt_after_a_fork_from_another_thread(pool_script):
    """Case 144: the thread that forks is the main thread of the child, which gets Ctrl-C."""
    pool_script("""
def child():
    with fastattn.threads(4):
        interrupt(lambda: sdpa(**endless("prefill")))
    check_calls(4)

def fork_here():
    assert status_of(fork(child)) == 0

check_calls(4)
run_threads([fork_here])
""")


def test_interrupts_at_any_moment(pool_script):
    """Case 144: many Ctrl-C, within calls and between them; every later result is right."""
    pool_script(f"""
rng = np.random.default_rng(2)
interrupted = 0
with fastattn.threads(3):
    check_calls(3)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    given = endless("decode")
    while interrupted < {100 if EXHAUSTIVE else 12}:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, 0.02))
            sdpa(**given)
        except KeyboardInterrupt:
            interrupted += 1
        check_calls(3)
""")
