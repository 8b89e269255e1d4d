# SPDX-License-Identifier: MIT
# fork: the child has a copy of the pool, but none of its threads.
# Used by pytest on every backend; each scenario forks in a process of its own.
# How processes end is asked in test_exit.py, fork inside signal handlers in test_signals.py.
"""Parent, child and grandchild compute the right bits after a fork at any moment."""

import os

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or os.environ.get("FASTATTN_TEST_SANITIZER") == "thread",
    reason="needs fork, and ThreadSanitizer loses count of the threads of forked processes",
)

SCRIPT = """
import os, sys, threading, time
import fastattn
from children import check_calls, endless, fork, n_workers, run_threads, sdpa, status_of

compiled = fastattn.get_backend() != "numpy"

def child():
    # The first call makes a pool of its own; the second one finds it.
    assert n_workers() == 0
    check_calls(4)
    assert n_workers() == (3 if compiled else 0)
    check_calls(4)
"""


def test_after_a_call(script):
    """Case 127: a child of a process that has computed computes, and so does the parent."""
    script("""
check_calls(4)
for _ in range(5):
    assert status_of(fork(child)) == 0
    check_calls(4)
assert n_workers() == (3 if compiled else 0)
""")


def test_before_any_call(pool_script):
    """Case 128: parent and child both make the first call of their process."""
    pool_script("""
pids = [fork(child) for _ in range(3)]
check_calls(4)
assert [status_of(pid) for pid in pids] == [0, 0, 0]
""")


def test_without_threads(pool_script):
    """Case 128: a child that computes alone needs no pool and starts none."""
    pool_script("""
def alone():
    check_calls(1)
    assert n_workers() == 0

check_calls(4)
assert status_of(fork(alone)) == 0
""")


def test_grandchildren(pool_script):
    """Case 128: fork in a forked child, before and after it has computed."""
    pool_script("""
def generation(depth):
    if depth % 2:
        child()
    if depth:
        assert status_of(fork(lambda: generation(depth - 1))) == 0
    check_calls(4)

check_calls(4)
generation(4)
""")


def test_from_another_thread(pool_script):
    """Case 128: fork in a thread that is not the main one; it has computed, or it has not."""
    pool_script("""
def fork_here():
    assert status_of(fork(child)) == 0

def compute_and_fork():
    check_calls(3)
    fork_here()

check_calls(4)
run_threads([fork_here])
run_threads([compute_and_fork])
run_threads([fork_here] * 4)
check_calls(4)
""")


def test_while_others_compute(pool_script):
    """Case 128: fork while calls of other threads run, which the child never sees end."""
    pool_script("""
stop = threading.Event()

def compute():
    while not stop.is_set():
        check_calls(3)

def fork_often():
    try:
        for _ in range(8):
            assert status_of(fork(child)) == 0
    finally:
        stop.set()

run_threads([compute, compute, compute, fork_often])
check_calls(4)
""")


def test_calls_of_the_parent_do_not_go_on_in_the_child(pool_script):
    """Case 128: workers of the child leave alone what its parent was computing at the fork."""
    pool_script("""
def quiet():
    check_calls(4)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1

fastattn.set_num_threads(4)
for _ in range(2):  # one worker or two in each, so that both still wait for more
    threading.Thread(target=lambda: sdpa(**endless("prefill")), daemon=True).start()
time.sleep(0.1)
for _ in range(2):
    assert status_of(fork(quiet)) == 0
print("done", flush=True)
os._exit(0)  # the calls have no end
""")


def test_first_calls_of_the_child_race(pool_script):
    """Case 128: eight threads of the child find the parent's pool at the same time."""
    pool_script("""
def race():
    start = threading.Barrier(8)
    def go():
        start.wait(20)
        check_calls(4)
    run_threads([go] * 8)

check_calls(4)
for _ in range(5):
    assert status_of(fork(race)) == 0
""")


def test_thread_settings_are_inherited(run_python):
    """A child keeps the numbers of threads that its parent had chosen."""
    done = run_python(
        SCRIPT
        + """
def settings(process, context):
    def elsewhere():
        assert fastattn.get_num_threads() == process
    def check():
        assert fastattn.get_num_threads() == context
        run_threads([elsewhere])
    return check

fastattn.set_num_threads(3)
assert status_of(fork(settings(3, 3))) == 0
with fastattn.threads(5):
    assert status_of(fork(settings(3, 5))) == 0
"""
    )
    assert done.returncode == 0, done


def test_multiprocessing(script):
    """Case 127: the workers of a process pool compute after their parent has computed."""
    script("""
import multiprocessing
import numpy as np

def compute(seed):
    q, k, v = np.random.default_rng(seed).standard_normal((3, 1, 4, 200, 16), np.float32)
    with fastattn.threads(4):
        return fastattn.scaled_dot_product_attention(q, k, v).tobytes()

check_calls(4)
wanted = [compute(seed) for seed in range(6)]
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(compute, range(6)).get(60) == wanted
    pool.close()
    pool.join()
check_calls(4)
""")


def test_a_child_ends_normally(script):
    """Case 128: a child that returns from everything runs its exit handlers and ends with 0."""
    script("""
import atexit

check_calls(4)
read_end, write_end = os.pipe()
pid = os.fork()
if pid == 0:
    atexit.register(os.write, write_end, b"exit handler")
    child()
    sys.exit()
assert status_of(pid) == 0
os.close(write_end)
assert os.read(read_end, 100) == b"exit handler"
check_calls(4)
""")
