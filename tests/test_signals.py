# SPDX-License-Identifier: MIT
# Signals during calls: what handlers may do there, and who gets them.
# Used by pytest on every backend, in child processes that send signals to themselves.
# Ctrl-C has test_signals_interrupt.py; signals that end the process are tested in test_exit.py.
"""Handlers run within long calls; they may raise, compute and fork, and workers see no signal."""

import os
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
FORK = pytest.mark.skipif(
    os.environ.get("FASTATTN_TEST_SANITIZER") == "thread",
    reason="ThreadSanitizer loses count of the threads of forked processes",
)
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

SCRIPT = """
import os, signal, subprocess, time
import fastattn
from children import check_calls, endless, fork, in_time, sdpa, send, status_of, workers
"""


def test_any_exception_of_a_handler_leaves_the_call(script):
    """Case 144: what a handler raises, Ctrl-C or not, is what the caller of the call gets."""
    script("""
class Deadline(Exception):
    pass

def handler(number, frame):
    raise Deadline(number)

signal.signal(signal.SIGALRM, handler)
for n_threads in (1, 4):
    sent = send(signal.SIGALRM, 0.1)
    try:
        with fastattn.threads(n_threads):
            sdpa(**endless("prefill"))
    except Deadline as error:
        assert error.args == (signal.SIGALRM,)
        in_time(sent)
    check_calls(4)
""")


def test_handlers_may_compute(pool_script):
    """Case 145: a handler that runs within a call makes calls itself, on the same pool."""
    pool_script("""
class Enough(Exception):
    pass

runs = []
def handler(number, frame):
    check_calls(4)
    runs.append(1)
    if len(runs) % 3 == 0:
        raise Enough
    signal.setitimer(signal.ITIMER_REAL, 0.1)  # one at a time, however slow the machine is

signal.signal(signal.SIGALRM, handler)
for n_threads in (1, 4):
    for kind in ("prefill", "decode"):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with fastattn.threads(n_threads):
                sdpa(**endless(kind))
        except Enough:
            pass
assert len(runs) == 12
check_calls(4)
""")


@FORK
def test_handlers_may_fork(pool_script):
    """Cases 128 and 145: a handler forks within a call; the child is free of the call's workers."""
    pool_script("""
class Enough(Exception):
    pass

def handler(number, frame):
    global status
    status = status_of(fork(lambda: check_calls(4)))
    raise Enough

signal.signal(signal.SIGALRM, handler)
for n_threads in (1, 4):
    for kind in ("prefill", "decode"):
        status = None
        send(signal.SIGALRM, 0.1)
        try:
            with fastattn.threads(n_threads):
                sdpa(**endless(kind))
        except Enough:
            pass
        assert status == 0
        check_calls(4)
""")


@FORK
def test_a_child_forked_by_a_handler_may_return(pool_script):
    """Case 128: the child returns into the call; it gets an error, not a wait for lost workers."""
    pool_script("""
class Enough(Exception):
    pass

def handler(number, frame):
    global pid
    pid = os.fork()
    if pid:
        raise Enough

signal.signal(signal.SIGALRM, handler)
for kind in ("prefill", "decode"):
    send(signal.SIGALRM, 0.1)
    try:
        with fastattn.threads(4):
            sdpa(**endless(kind))
    except Enough:
        pass
    except Exception:  # the child
        check_calls(4)
        os._exit(10)
    assert status_of(pid) == 10
    check_calls(4)
""")


@LINUX
def test_masks_of_workers_and_of_others(pool_script):
    """Case 145: workers block every signal; the caller and its subprocesses block what they did."""
    pool_script("""
def field(name, path="/proc/thread-self"):
    with open(f"{path}/status") as lines:
        return next(line for line in lines if line.startswith(name))

def masks():
    other = subprocess.run(["grep", "SigBlk", "/proc/self/status"], capture_output=True, text=True)
    ignored = int(field("SigIgn").split()[1], 16) & ~(3 << 31)  # 32, 33: the C library's own
    return field("SigBlk"), ignored, other.stdout

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
before = masks()
check_calls(4)
assert len(workers()) == 3
for worker in workers():
    blocked = int(field("SigBlk", worker).split()[1], 16)
    free = [s.name for s in signal.Signals if not blocked >> (s - 1) & 1]
    assert set(free) <= {"SIGKILL", "SIGSTOP", "SIGRTMIN"}, free
assert masks() == before
""")


def test_a_storm_of_alarms(pool_script):
    """Case 145: a thousand SIGALRM during calls; no call fails, and all results are right."""
    pool_script("""
count = 0
def handler(number, frame):
    global count
    count += 1

signal.signal(signal.SIGALRM, handler)
end = time.monotonic() + 1.2
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
n_threads = 1
while time.monotonic() < end:
    check_calls(n_threads)
    n_threads = n_threads % 4 + 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert count > 50, count
""")
